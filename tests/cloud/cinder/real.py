"""Cinder's API, scheduler and volume service in one process, without Keystone and without a message bus: sqlite and oslo.messaging's fake
transport. Its only back end keeps volumes in sparse files below the directory that is the argument.

Serves until its standard input ends; the port is on standard output. The log is cinder.log in the directory.
"""
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
import eventlet
eventlet.monkey_patch()
import random, shlex, socket

WORK = sys.argv[1]
ETC = os.path.join(sys.prefix, "etc", "cinder")
def free_port():
    """Seconds pass before it is bound, so it is none of the ephemeral ports (32768 and above), which any other test may get meanwhile."""
    while True:
        port = random.randrange(10000, 30000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            pass
PORT = free_port()
CONFIG = f"""
[DEFAULT]
auth_strategy = noauth
transport_url = fake://
enabled_backends = files
default_volume_type = ssd
backup_driver = __main__.FileBackup
backup_driver_stats_polling_interval = 10
periodic_interval = 1
service_down_time = 3600
rpc_response_timeout = 3600
state_path = {WORK}/state
osapi_volume_listen = 127.0.0.1
osapi_volume_listen_port = {PORT}
osapi_volume_workers = 1
osapi_max_limit = 2
my_ip = 127.0.0.1
host = one
rootwrap_config = {ETC}/rootwrap.conf
api_paste_config = {ETC}/api-paste.ini
resource_query_filters_file = {ETC}/resource_filters.json
log_file = {WORK}/cinder.log
quota_volumes = 5
quota_gigabytes = 10000
storage_availability_zone = nova
[database]
connection = sqlite:///{WORK}/cinder.sqlite
[oslo_concurrency]
lock_path = {WORK}/lock
[coordination]
backend_url = file://{WORK}/coordination
[files]
volume_driver = __main__.FileDriver
volume_backend_name = files
"""
with open(os.path.join(WORK, "cinder.conf"), "w") as file:
    file.write(CONFIG)
for name in ("state", "lock", "volumes", "backups"):
    os.makedirs(os.path.join(WORK, name))

from oslo_config import cfg
from oslo_log import log as logging
from oslo_privsep import priv_context
from oslo_service import service as oslo_service
from cinder import i18n
i18n.enable_lazy()
from cinder import context, coordination, objects, rpc, service, utils, version
from cinder.common import config
from cinder.db import api, migration
objects.register_all()
from cinder.backup import driver as backup_driver
from cinder.cmd import backup as _backup, volume as command
from cinder.volume import api as volume_api, configuration, driver, manager, volume_types, volume_utils


def copy_data(data, file):
    """All that is no hole."""
    at, end = 0, os.fstat(data.fileno()).st_size
    while at < end:
        try:
            at = os.lseek(data.fileno(), at, os.SEEK_DATA)
        except OSError:
            break
        hole = os.lseek(data.fileno(), at, os.SEEK_HOLE)
        os.pwrite(file.fileno(), os.pread(data.fileno(), hole - at, at), at)
        at = hole


class FileBackup(backup_driver.BackupDriver):
    """A backup is a sparse file, and the volume's metadata beside it, which Cinder's own drivers save and restore as this one does."""

    def path(self, backup):
        return os.path.join(WORK, "backups", backup.id)

    def backup(self, backup, volume_file, backup_metadata=True):
        with open(self.path(backup), "wb") as file:
            copy_data(volume_file, file)
            file.truncate(os.fstat(volume_file.fileno()).st_size)
        with open(self.path(backup) + ".json", "w") as file:
            file.write(self.get_metadata(backup.volume_id))

    def restore(self, backup, volume_id, volume_file, volume_is_new):
        with open(self.path(backup), "rb") as data:
            copy_data(data, volume_file)
        with open(self.path(backup) + ".json") as file:
            self.put_metadata(volume_id, file.read())

    def delete_backup(self, backup):
        for name in (self.path(backup), self.path(backup) + ".json"):
            os.unlink(name)

    def check_for_setup_error(self):
        pass


class FileDriver(driver.VolumeDriver):
    """A volume is a sparse file; a snapshot and a copy are copies of it."""
    VERSION = "1"

    def path(self, resource):
        return os.path.join(WORK, "volumes", resource.id)

    def create_volume(self, volume):
        with open(self.path(volume), "wb") as file:
            file.truncate(volume.size << 30)

    def copy(self, source, to, size):
        with open(self.path(source), "rb") as data, open(self.path(to), "wb") as file:
            copy_data(data, file)
            file.truncate(size << 30)

    def create_volume_from_snapshot(self, volume, snapshot):
        self.copy(snapshot, volume, volume.size)

    def create_cloned_volume(self, volume, source):
        self.copy(source, volume, volume.size)

    def create_snapshot(self, snapshot):
        self.copy(snapshot.volume, snapshot, snapshot.volume_size)

    def delete_volume(self, volume):
        os.unlink(self.path(volume))

    delete_snapshot = delete_volume

    def extend_volume(self, volume, size):
        os.truncate(self.path(volume), size << 30)

    def retype(self, context, volume, new_type, diff, host):
        return True

    def _update_volume_stats(self):
        self._stats = {"volume_backend_name": "files", "vendor_name": "tests", "driver_version": self.VERSION, "storage_protocol": "file",
                       "total_capacity_gb": 100, "free_capacity_gb": 100, "reserved_percentage": 0, "multiattach": True}

    def initialize_connection(self, volume, connector):
        return {"driver_volume_type": "local", "data": {"device_path": self.path(volume)}}

    def nothing(self, *arguments, **more):
        pass

    def initialize_connection_snapshot(self, snapshot, connector):
        return {"driver_volume_type": "local", "data": {"device_path": self.path(snapshot)}}

    create_export_snapshot = remove_export_snapshot = terminate_connection_snapshot = nothing
    check_for_setup_error = do_setup = ensure_export = create_export = remove_export = terminate_connection = nothing


CONF = cfg.CONF
CONF(["--config-file", os.path.join(WORK, "cinder.conf")], project="cinder", version=version.version_string())
logging.setup(CONF, "cinder")
priv_context.init(root_helper=shlex.split(utils.get_root_helper()))
migration.db_sync()
for name, specs in (("ssd", {}), ("fast", {}), ("shared", {"multiattach": "<is> True"})):
    volume_types.create(context.get_admin_context(), name, specs)
# Nova has a token of a service (CVE-2023-2088); without Keystone there are none.
volume_api.API.is_service_request = staticmethod(lambda context: True)
# What cinder-backup reads from is a file: it needs none of the host's initiators, and no sudo to ask for them.
volume_utils.brick_get_connector_properties = lambda *arguments, **more: {"host": "one"}
rpc.init(CONF)
launcher = oslo_service.ServiceLauncher(CONF, restart_method="mutate")
CONF.register_opt(command.host_opt, group="files")
launcher.launch_service(service.Service.create(host="one@files", service_name="files", binary="cinder-volume", coordination=True))
launcher.launch_service(service.Service.create(binary="cinder-scheduler"))
semaphore = utils.semaphore_factory(4, 1)
launcher.launch_service(service.Service.create(binary="cinder-backup", service_name="backup", coordination=True, process_number=1, semaphore=semaphore))
launcher.launch_service(service.WSGIService("osapi_volume"))
print(PORT, flush=True)
launcher.wait()
