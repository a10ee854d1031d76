package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Stands in for node-driver-registrar, whose module cannot be had: it says to the kubelet what that says, and ends as that ends.
type registrar struct {
	pluginregistration.UnimplementedRegistrationServer
	driver, endpoint string
}

func (r registrar) GetInfo(context.Context, *pluginregistration.InfoRequest) (*pluginregistration.PluginInfo, error) {
	return &pluginregistration.PluginInfo{Type: pluginregistration.CSIPlugin, Name: r.driver, Endpoint: r.endpoint,
		SupportedVersions: []string{"1.0.0"}}, nil
}

func (r registrar) NotifyRegistrationStatus(_ context.Context, status *pluginregistration.RegistrationStatus) (*pluginregistration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		exit(fmt.Errorf("the kubelet says: %s", status.Error))
	}
	return &pluginregistration.RegistrationStatusResponse{}, nil
}

// registrar DRIVER ENDPOINT SOCKET
func runRegistrar(arguments []string) error {
	os.Remove(arguments[2])
	listener, err := net.Listen("unix", arguments[2])
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	pluginregistration.RegisterRegistrationServer(server, registrar{driver: arguments[0], endpoint: arguments[1]})
	return server.Serve(listener)
}
