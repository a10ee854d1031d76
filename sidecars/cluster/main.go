// The control plane of Kubernetes, its kubelet, and the storage half of one, in one binary, by the name that it is called by: what is
// common to them is linked once.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeletapp "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(manager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet":
		os.Exit(cli.Run(kubeletapp.NewKubeletCommand(context.Background())))
	case "kubelet-storage":
		exit(runKubelet(os.Args[1:]))
	case "registrar":
		exit(runRegistrar(os.Args[1:]))
	default:
		fmt.Fprintf(os.Stderr, "%s: call it kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubelet-storage or registrar\n", name)
		os.Exit(2)
	}
}
