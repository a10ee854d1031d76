"""Azure's own Python client manages the emulator's disks, by the operations as the client follows them: `vendor_life.py URL TOKEN`."""
import sys

from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.mgmt.compute import ComputeManagementClient

url, token, subscription, group, location = sys.argv[1:]


class Bearer(SansIOHTTPPolicy):
    """The client's own policy refuses what is not TLS."""

    def on_request(self, request):
        request.http_request.headers["Authorization"] = f"Bearer {token}"


client = ComputeManagementClient(
    credential=object(), subscription_id=subscription, base_url=url, authentication_policy=Bearer(), retry_total=0, polling_interval=0)
empty = {"location": location, "sku": {"name": "StandardSSD_LRS"}, "tags": {"a": "b"},
         "properties": {"diskSizeGB": 4, "creationData": {"createOption": "Empty"}}}


def failure(begin):
    try:
        begin().result()
    except HttpResponseError as error:
        return error.error.code
    raise AssertionError("it did not fail")


for name in ["one", "two", "three"]:
    made = client.disks.begin_create_or_update(group, name, empty).result()
    assert (made.disk_state, made.disk_size_gb, made.tags) == ("Unattached", 4, {"a": "b"}), made
assert sorted(disk.name.lower() for disk in client.disks.list_by_resource_group(group)) == ["one", "three", "two"]
assert client.disks.begin_update(group, "one", {"properties": {"diskSizeGB": 8}}).result().disk_size_gb == 8

disk = f"/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute/disks/one"
# Twice: one operation has an address of its own, the other only that of its result.
for lun in [0, 1]:
    request = {"dataDisksToAttach": [{"diskId": disk, "lun": lun, "caching": "None"}]}
    client.virtual_machines.begin_attach_detach_data_disks(group, "n1", request).result()
    machine = client.virtual_machines.get(group, "n1", expand="instanceView")
    assert [listed.lun for listed in machine.storage_profile.data_disks] == [lun], machine
    assert client.disks.get(group, "one").managed_by.lower().endswith("/n1")
    assert failure(lambda: client.disks.begin_delete(group, "one")) == "OperationNotAllowed"
    client.virtual_machines.begin_attach_detach_data_disks(group, "n1", {"dataDisksToDetach": [{"diskId": disk}]}).result()

taken = client.snapshots.begin_create_or_update(group, "s", {
    "location": location, "properties": {"incremental": True, "creationData": {"createOption": "Copy", "sourceResourceId": disk}}}).result()
assert taken.time_created is not None, taken
client.snapshots.begin_delete(group, "s").result()

print("now", flush=True)
sys.stdin.readline()
assert failure(lambda: client.disks.begin_create_or_update(group, "four", empty)) == "AllocationFailed"
for name in ["one", "two", "three"]:
    client.disks.begin_delete(group, name).result()
    try:
        client.disks.get(group, name)
        raise AssertionError("it is there")
    except ResourceNotFoundError:
        pass
