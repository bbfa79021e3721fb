// Command flannel is the CNI plugin of that name: see package cniplugin.
package main

import (
	"os"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"

	"flannel/pkg/cniplugin"
	"flannel/pkg/version"
)

func main() {
	p := &cniplugin.Plugin{OS: runtime.GOOS, Stderr: os.Stderr, SubnetWait: cniplugin.DefaultSubnetWait, LockWait: cniplugin.DefaultLockWait}
	info := cniplugin.Version(version.Version)
	skel.PluginMainFuncs(p.Funcs(), info, "CNI plugin flannel of flanneld "+version.String())
}
