// The control plane of Kubernetes, and the storage half of a kubelet, in one binary, by the name that it is called by: what is common
// to them is linked once.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	case "kube-controller-manager":
		os.Exit(cli.Run(manager.NewControllerManagerCommand()))
	case "kube-scheduler":
		os.Exit(cli.Run(scheduler.NewSchedulerCommand()))
	case "kubelet-storage":
		exit(runKubelet(os.Args[1:]))
	case "registrar":
		exit(runRegistrar(os.Args[1:]))
	default:
		fmt.Fprintf(os.Stderr, "%s: call it kube-apiserver, kube-controller-manager, kube-scheduler, kubelet-storage or registrar\n", name)
		os.Exit(2)
	}
}
