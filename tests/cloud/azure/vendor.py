"""Compares requests of the driver, and the emulator's responses, with Azure's own Python client.

Reads exchanges, a JSON list on each line: {"method", "path", "body", "response": null or {"status", "headers", "body"}}. Each request is made
again by the client, from the names in its path and from the model that its body is read into; method, path, query and body must be the same.
The response is given to the client, which must read it: success, or a failure with a code. Fields, types and values of an enumeration that its
models do not have are reported, too. Prints a JSON list for each line: [how many requests were compared, [what is wrong]].
"""
import io, json, re, sys, time
from urllib.parse import parse_qsl, unquote, urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import DeserializationError, HttpResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.mgmt.compute import ComputeManagementClient
from azure.mgmt.compute.v2024_03_02 import models as disks
from azure.mgmt.compute.v2024_07_01 import models as machines
from azure.mgmt.resource.resources import ResourceManagementClient
from azure.mgmt.resource.resources.v2021_04_01 import models as tags
from azure.mgmt.resource.subscriptions import SubscriptionClient
from azure.mgmt.resource.subscriptions.v2022_12_01 import models as subscriptions
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse
import requests


class Replay(HTTPAdapter):
    """Keeps the request, and answers with what was recorded."""

    def send(self, request, **_):
        self.request = request
        body = self.response["body"]
        raw = HTTPResponse(
            body=io.BytesIO(b"" if body is None else json.dumps(body).encode()), status=self.response["status"], reason="Said",
            headers={"content-type": "application/json", **self.response["headers"]}, preload_content=False)
        return self.build_response(request, raw)


class Credential:
    def get_token(self, *_, **__):
        return AccessToken("t", int(time.time()) + 3600)


transport, session = Replay(), requests.Session()
session.mount("https://", transport)
common = dict(credential=Credential(), transport=RequestsTransport(session=session, session_owner=False), retry_total=0, base_url="https://management.azure.com")


def operations(subscription):
    """What each request is: method, path, the call of the client, the model of its body, and that of its response."""
    compute = ComputeManagementClient(subscription_id=subscription, **common)
    resource = ResourceManagementClient(subscription_id=subscription, api_version="2021-04-01", **common)
    regions = SubscriptionClient(api_version="2022-12-01", **common)
    group = r"/subscriptions/[^/]+/resourceGroups/([^/]+)"
    provider = group + "/providers/Microsoft.Compute"
    machine, member = provider + r"/virtualMachines/([^/]+)", provider + r"/virtualMachineScaleSets/([^/]+)/virtualMachines/([^/]+)"
    at_once = {"polling": False}
    all = []
    for kind, client, model, change, listed in [
        ("disks", compute.disks, disks.Disk, disks.DiskUpdate, disks.DiskList),
        ("snapshots", compute.snapshots, disks.Snapshot, disks.SnapshotUpdate, disks.SnapshotList),
    ]:
        one = f"{provider}/{kind}/([^/]+)"
        all += [
            ("GET", one, lambda m, b, q, c=client: c.get(*m), None, model),
            ("GET", f"{provider}/{kind}", lambda m, b, q, c=client: next(iter(c.list_by_resource_group(*m).by_page())), None, listed),
            ("PUT", one, lambda m, b, q, c=client: c.begin_create_or_update(*m, b, **at_once), model, model),
            ("PATCH", one, lambda m, b, q, c=client: c.begin_update(*m, b, **at_once), change, model),
            ("DELETE", one, lambda m, b, q, c=client: c.begin_delete(*m, **at_once), None, None),
        ]
    of_set, change = compute.virtual_machine_scale_set_vms, machines.AttachDetachDataDisksRequest
    all += [
        ("GET", machine, lambda m, b, q: compute.virtual_machines.get(*m, expand=q.get("$expand")), None, machines.VirtualMachine),
        ("GET", member, lambda m, b, q: of_set.get(*m, expand=q.get("$expand")), None, machines.VirtualMachineScaleSetVM),
        ("POST", machine + "/attachDetachDataDisks",
         lambda m, b, q: compute.virtual_machines.begin_attach_detach_data_disks(*m, b, **at_once), change, machines.StorageProfile),
        ("POST", member + "/attachDetachDataDisks",
         lambda m, b, q: of_set.begin_attach_detach_data_disks(*m, b, **at_once), change, machines.StorageProfile),
        ("PATCH", "/(.+)/providers/Microsoft.Resources/tags/default",
         lambda m, b, q: resource.tags.update_at_scope(*m, b), tags.TagsPatchResource, tags.TagsResource),
        ("GET", "/subscriptions/([^/]+)/locations",
         lambda m, b, q: next(iter(regions.subscriptions.list_locations(*m).by_page())), None, subscriptions.LocationListResult),
    ]
    return [(method, re.compile(path), *rest) for method, path, *rest in all]


# Fields whose values are one of an enumeration; the models call them text.
VALUES = {
    (disks.DiskSku, "name"): disks.DiskStorageAccountTypes, (disks.SnapshotSku, "name"): disks.SnapshotStorageAccountTypes,
    (disks.CreationData, "createOption"): disks.DiskCreateOption,
    (disks.Disk, "properties.networkAccessPolicy"): disks.NetworkAccessPolicy,
    (disks.Disk, "properties.publicNetworkAccess"): disks.PublicNetworkAccess,
    (disks.Disk, "properties.diskState"): disks.DiskState,
    (disks.Snapshot, "properties.networkAccessPolicy"): disks.NetworkAccessPolicy,
    (disks.Snapshot, "properties.publicNetworkAccess"): disks.PublicNetworkAccess,
    (disks.Encryption, "type"): disks.EncryptionType,
    (machines.DataDisksToAttach, "caching"): machines.CachingTypes,
    (machines.DataDisk, "caching"): machines.CachingTypes, (machines.DataDisk, "createOption"): machines.DiskCreateOptionTypes,
}
SIMPLE = {"str": str, "int": int, "bool": bool, "float": (int, float), "iso-8601": str}


def check(model, value, where, models):
    """What of a value its model does not have."""
    if not isinstance(value, dict):
        return [f"{where}: {value!r} is no {model.__name__}"]
    wrong, known = [], {}
    for kind, entry in model._attribute_map.items():
        known[re.sub(r"\\\.", ".", entry["key"])] = entry["type"]

    def walk(part, prefix):
        for key, inner in part.items():
            path = prefix + key
            if path in known:
                wrong.extend(check_type(known[path], inner, f"{where}.{path}", models))
                values = VALUES.get((model, path))
                if values and inner is not None and inner not in [item.value for item in values]:
                    wrong.append(f"{where}.{path}: {inner!r} is no {values.__name__}")
            elif any(name.startswith(path + ".") for name in known) and isinstance(inner, dict):
                walk(inner, path + ".")
            else:
                wrong.append(f"{where}.{path}: {model.__name__} has no such field")

    walk(value, "")
    return wrong


def check_type(kind, value, where, models):
    if value is None:
        return []
    if kind[0] in "[{":
        inner = kind[1:-1]
        if not isinstance(value, list if kind[0] == "[" else dict):
            return [f"{where}: {value!r} is not {kind}"]
        items = enumerate(value) if kind[0] == "[" else value.items()
        return [bad for key, item in items for bad in check_type(inner, item, f"{where}[{key}]", models)]
    if kind in SIMPLE:
        fits = isinstance(value, SIMPLE[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if fits else [f"{where}: {value!r} is no {kind}"]
    return check(getattr(models, kind), value, where, models)


def compare(exchange):
    """Whether the request was compared, and what is wrong."""
    method, url = exchange["method"], urlsplit(exchange["path"])
    query = dict(parse_qsl(url.query))
    # Addresses that a response gave, which the driver only repeats.
    if "$skipToken" in query or "/Operations/" in url.path or "/DiskOperations/" in url.path or "/operations/" in url.path:
        return False, []
    what = f"{method} {url.path}"
    for of, pattern, call, takes, gives in known(url.path):
        found = pattern.fullmatch(url.path)
        if of == method and found:
            break
    else:
        return False, [f"{what}: the client has no such request"]
    names = [unquote(name) for name in found.groups()]
    body = exchange["body"]
    wrong = [] if takes is None else check(takes, body, what, sys.modules[takes.__module__.rsplit(".", 1)[0]])
    if wrong:
        return True, wrong
    # Only one that was lost has none.
    response = exchange["response"] or {"status": 404, "headers": {}, "body": {"error": {"code": "Lost", "message": ""}}}
    transport.response, transport.request, failure = response, None, None
    try:
        call(names, takes and takes.deserialize(body), query)
    except (HttpResponseError, DeserializationError) as error:
        failure = error
    sent = transport.request
    if sent is None:
        return False, wrong + [f"{what}: the client sends nothing: {failure}"]
    other = urlsplit(sent.url)
    its = json.loads(sent.body) if sent.body else None
    # Paths have no case, and the description itself has both "virtualMachines" and "virtualmachines".
    for part, ours, theirs in [("method", method, sent.method), ("path", unquote(url.path).lower(), unquote(other.path).lower()),
                               ("query", query, dict(parse_qsl(other.query))), ("body", body, its)]:
        if ours != theirs:
            wrong.append(f"{what}: its {part} is {ours!r}, and that of the client {theirs!r}")
    answer, status = response["body"], response["status"]
    if status >= 400:
        if not getattr(getattr(failure, "error", None), "code", None):
            wrong.append(f"{what}: the client reads no code of error in {answer!r}")
    elif isinstance(answer, dict) and "error" in answer:
        pass  # A success that is none is wrong on purpose.
    elif failure is not None:
        wrong.append(f"{what}: status {status} is none of the client's: {failure}")
    elif gives is not None and answer is not None:
        wrong += check(gives, answer, f"{what} -> {status}", sys.modules[gives.__module__.rsplit(".", 1)[0]])
    return True, wrong


clients = {}


def known(path):
    subscription = path.split("/")[2]
    if subscription not in clients:
        clients[subscription] = operations(subscription)
    return clients[subscription]


for line in sys.stdin:
    compared, wrong = 0, []
    for exchange in json.loads(line):
        was_compared, bad = compare(exchange)
        compared += was_compared
        wrong += [item for item in bad if item not in wrong]
    print(json.dumps([compared, wrong]), flush=True)
