// client FORM CSI_SOCKET REGISTRATION_SOCKET SNAPSHOT_ID: one call of each kind; a line for each result. FORM is `target` for a
// target unix:///path, and `dialer` for a path that a dialer of one's own takes, as the kubelet's plugin watcher has it: then the
// path is the authority.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func connect(form, path string) *grpc.ClientConn {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	target := "unix://" + path
	if form == "dialer" {
		target = "passthrough:///" + path
		options = append(options, grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", address)
		}))
	}
	connection, err := grpc.NewClient(target, options...)
	check(err)
	return connection
}

func main() {
	form, socket, registrationSocket, snapshot := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	connection := connect(form, socket)
	identity, controller := csi.NewIdentityClient(connection), csi.NewControllerClient(connection)
	node, metadata := csi.NewNodeClient(connection), csi.NewSnapshotMetadataClient(connection)

	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	check(err)
	fmt.Println("GetPluginInfo", info.Name)
	capabilities, err := identity.GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	check(err)
	fmt.Println("GetPluginCapabilities", len(capabilities.Capabilities))
	probe, err := identity.Probe(ctx, &csi.ProbeRequest{})
	check(err)
	fmt.Println("Probe", probe.Ready.GetValue())
	created, err := controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name:          "client",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 64 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		Parameters: map[string]string{"backend": "fake"},
	})
	check(err)
	fmt.Println("CreateVolume", created.Volume.CapacityBytes)
	listed, err := controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
	check(err)
	fmt.Println("ListVolumes", len(listed.Entries))
	_, err = controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: created.Volume.VolumeId})
	check(err)
	fmt.Println("DeleteVolume")
	here, err := node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	check(err)
	fmt.Println("NodeGetInfo", here.NodeId)
	stream, err := metadata.GetMetadataAllocated(ctx, &csi.GetMetadataAllocatedRequest{SnapshotId: snapshot, MaxResults: 1})
	check(err)
	blocks := 0
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		check(err)
		blocks += len(message.BlockMetadata)
	}
	fmt.Println("GetMetadataAllocated", blocks)
	_, err = controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})
	fmt.Println("DeleteVolume", int(status.Code(err)), status.Convert(err).Message())

	plugin, err := registration.NewRegistrationClient(connect(form, registrationSocket)).GetInfo(ctx, &registration.InfoRequest{})
	check(err)
	fmt.Println("GetInfo", plugin.Type, plugin.Name)
}
