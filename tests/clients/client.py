"""client.py PROTO_DIRECTORY CSI_SOCKET REGISTRATION_SOCKET SNAPSHOT_ID: one call of each kind; a line for each result."""

import sys

import grpc

directory, socket, registration_socket, snapshot = sys.argv[1:]
sys.path.insert(0, directory)
csi, services = grpc.protos_and_services("csi.proto")
plugin, registration = grpc.protos_and_services("pluginregistration.proto")
LIMIT = {"timeout": 30}

with grpc.insecure_channel(f"unix://{socket}") as channel:
    identity, controller = services.IdentityStub(channel), services.ControllerStub(channel)
    node, metadata = services.NodeStub(channel), services.SnapshotMetadataStub(channel)
    print("GetPluginInfo", identity.GetPluginInfo(csi.GetPluginInfoRequest(), **LIMIT).name)
    print("GetPluginCapabilities", len(identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest(), **LIMIT).capabilities))
    print("Probe", str(identity.Probe(csi.ProbeRequest(), **LIMIT).ready.value).lower())
    single = csi.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER")
    wanted = csi.VolumeCapability(block=csi.VolumeCapability.BlockVolume(), access_mode=single)
    request = csi.CreateVolumeRequest(name="client", volume_capabilities=[wanted], parameters={"backend": "fake"},
                                      capacity_range=csi.CapacityRange(required_bytes=64 << 20))
    volume = controller.CreateVolume(request, **LIMIT).volume
    print("CreateVolume", volume.capacity_bytes)
    print("ListVolumes", len(controller.ListVolumes(csi.ListVolumesRequest(), **LIMIT).entries))
    controller.DeleteVolume(csi.DeleteVolumeRequest(volume_id=volume.volume_id), **LIMIT)
    print("DeleteVolume")
    print("NodeGetInfo", node.NodeGetInfo(csi.NodeGetInfoRequest(), **LIMIT).node_id)
    stream = metadata.GetMetadataAllocated(csi.GetMetadataAllocatedRequest(snapshot_id=snapshot, max_results=1), **LIMIT)
    print("GetMetadataAllocated", sum(len(message.block_metadata) for message in stream))
    try:
        controller.DeleteVolume(csi.DeleteVolumeRequest(), **LIMIT)
    except grpc.RpcError as error:
        print("DeleteVolume", error.code().value[0], error.details())

with grpc.insecure_channel(f"unix://{registration_socket}") as channel:
    info = registration.RegistrationStub(channel).GetInfo(plugin.InfoRequest(), **LIMIT)
    print("GetInfo", info.type, info.name)
