// Command flannel is the CNI plugin "flannel", see package plugin.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"

	"flannel/pkg/cni/plugin"
	"flannel/pkg/version"
)

func main() {
	if err := plugin.KillDelegateOnExit(); err != nil {
		fmt.Fprintln(os.Stderr, "flannel CNI plugin: continuing without a job object:", err)
	}
	p := &plugin.Plugin{
		OS:         runtime.GOOS,
		Stderr:     os.Stderr,
		SubnetWait: plugin.DefaultSubnetWait,
		LockWait:   plugin.DefaultLockWait,
		Endpoint:   plugin.FindEndpoint,
	}
	info := plugin.Version(version.Version)
	skel.PluginMainFuncs(p.Funcs(), info, "CNI plugin flannel of flanneld "+version.String())
}
