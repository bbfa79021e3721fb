// Command flannel is the CNI plugin "flannel", see package cniplugin.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"

	"flannel/pkg/cniplugin"
	"flannel/pkg/version"
)

func main() {
	if err := cniplugin.KillDelegateOnExit(); err != nil {
		fmt.Fprintln(os.Stderr, "flannel CNI plugin: continuing without a job object:", err)
	}
	p := &cniplugin.Plugin{
		OS:         runtime.GOOS,
		Stderr:     os.Stderr,
		SubnetWait: cniplugin.DefaultSubnetWait,
		LockWait:   cniplugin.DefaultLockWait,
		Endpoint:   cniplugin.FindEndpoint,
	}
	info := cniplugin.Version(version.Version)
	skel.PluginMainFuncs(p.Funcs(), info, "CNI plugin flannel of flanneld "+version.String())
}
