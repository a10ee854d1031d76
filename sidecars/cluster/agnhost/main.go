// agnhost with what the storage suites call of it: each of its commands is the Kubernetes project's own.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/test/images/agnhost/mounttest"
	"k8s.io/kubernetes/test/images/agnhost/netexec"
	"k8s.io/kubernetes/test/images/agnhost/pause"
)

func main() {
	root := &cobra.Command{Use: "agnhost"}
	root.AddCommand(mounttest.CmdMounttest, netexec.CmdNetexec, pause.CmdPause)
	os.Exit(cli.Run(root))
}
