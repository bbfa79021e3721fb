package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
)

// A flanneld whose network namespace this process may not see can be a daemon of this node, or of another one.
func TestDaemonOfUnknownNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		cmd := exec.Command("/bin/sh", "-c", "sleep 600; :")
		cmd.Args[0] = "flanneld-hidden"
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		var found []doctor.Process
		var err error
		looked := make(chan struct{})
		go func() { // without capabilities; its thread ends with it
			defer close(looked)
			runtime.LockOSThread()
			var none [2]unix.CapUserData
			if err = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err == nil {
				found, err = daemons(nil)
			}
		}()
		if <-looked; !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "flanneld-hidden") {
			t.Errorf("found %v, %v", found, err)
		}
	})
}

// A kernel parameter that cannot be read may have any value, and is not missing.
func TestUnreadSysctls(t *testing.T) {
	for _, c := range []struct{ unreadable, instead string }{
		{"", ""}, {"net/ipv4/ip_forward", "mkdir"}, {"net/bridge/bridge-nf-call-iptables", "mkdir -p"}, {"net/ipv4/conf/eth0/forwarding", "mkdir"}, {"net/ipv6", "touch"},
	} {
		root := t.TempDir()
		sh(t, `cd `+root+`; mkdir -p net/ipv4/conf/eth0; echo 1 > net/ipv4/ip_forward; echo 0 > net/ipv4/conf/eth0/forwarding; echo 0 > net/ipv4/conf/eth0/disable_xfrm`)
		if c.unreadable != "" {
			sh(t, fmt.Sprintf("cd %s; rm -f %s; %s %[2]s", root, c.unreadable, c.instead))
		}
		values, err := sysctls(root)
		if want := (doctor.Sysctls{"net/ipv4/ip_forward": "1", "net/ipv4/conf/eth0/forwarding": "0"}); c.unreadable == "" && (err != nil || !maps.Equal(values, want)) {
			t.Errorf("%v, %v; want %v", values, err, want)
		}
		if c.unreadable != "" && err == nil {
			t.Errorf("without %s: %v", c.unreadable, values)
		}
	}
}

// A device whose state cannot be read may be managed.
func TestUnreadManagers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer wire; mkdir -p /run/NetworkManager/devices /run/systemd/netif/links`)
		if list, err := managers(); err != nil {
			t.Errorf("%v, %v", list, err)
		}
		for _, dir := range []string{"/run/NetworkManager/devices", "/run/systemd/netif/links"} {
			sh(t, `mkdir `+dir+`/$(cat /sys/class/net/eth0/ifindex)`)
			if list, err := managers(); err == nil {
				t.Errorf("%s: %v", dir, list)
			}
			sh(t, `rmdir `+dir+`/$(cat /sys/class/net/eth0/ifindex)`)
		}
	})
}

// A directory of CNI plugins that exists and cannot be read may have any of them.
func TestUnreadPlugins(t *testing.T) {
	dir := t.TempDir()
	sh(t, `cd `+dir+`; mkdir bin; touch bin/flannel file`)
	c, err := cni(Options{ConfDir: dir, BinDirs: []string{dir + "/none", dir + "/file", dir + "/bin"}})
	if err != nil || len(c.Unread) != 1 || c.Unread[dir+"/file"] == "" || len(c.Plugins) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
}

// Rules of iptables-legacy that no installed program lists are not absent.
func TestUnlistedLegacyRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, path := t.TempDir(), os.Getenv("PATH")
		sh(t, `ln -s $(command -v iptables-nft-save) `+dir)
		for _, hasRules := range []bool{false, true} {
			t.Setenv("PATH", path)
			if hasRules {
				sh(t, "iptables-legacy -A INPUT -j ACCEPT")
			}
			t.Setenv("PATH", dir)
			if list, err := iptables(t.Context(), "iptables"); (err != nil) != hasRules {
				t.Errorf("with rules of iptables-legacy: %t; %v, %v", hasRules, list, err)
			}
		}
	})
}
