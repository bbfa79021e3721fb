package probe

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"flannel/internal/test/logtest"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
	"flannel/pkg/doctor/ruleset"
	"flannel/pkg/underlay"
)

// A flanneld whose network namespace this process may not see can be a daemon of this node, or of another one. Others are
// found beside it, and their secrets.
func TestDaemonOfUnknownNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		pids := map[string]int{}
		start := func(name string, setpriv ...string) {
			t.Helper()
			cmd := exec.Command("setpriv", append(setpriv, "bash", "-c", "exec -a "+name+" sh -c 'echo; sleep 600; :' sh --etcd-password=of-"+name)...)
			out, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			pids[name] = cmd.Process.Pid
			if _, err := out.Read(make([]byte, 1)); err != nil { // it has its name
				t.Fatal(err)
			}
		}
		start("flanneld-hidden")
		start("flanneld-seen", "--bounding-set=-all")
		var found []doctor.Process
		var all []Daemon
		var err, err2 error
		looked := make(chan struct{})
		go func() { // without capabilities; its thread ends with it
			defer close(looked)
			runtime.LockOSThread()
			var none [2]unix.CapUserData
			if err = unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err == nil {
				found, err = daemons(nil)
				all, err2 = Daemons(nil)
			}
		}()
		<-looked
		reasons := map[string]string{}
		for _, p := range found {
			reasons[p.Name] = p.WhyNot
		}
		if why, is := reasons["flanneld-seen"]; err != nil || len(found) != 2 || !is || why != "" || !strings.Contains(reasons["flanneld-hidden"], "denied") {
			t.Errorf("found %+v, %v", found, err)
		}
		byPID := map[int]Daemon{}
		for _, d := range all {
			byPID[d.PID] = d
		}
		seen, hidden := byPID[pids["flanneld-seen"]], byPID[pids["flanneld-hidden"]]
		if err2 != nil || len(all) != 2 || seen.WhyNot != "" || seen.Environ == nil || hidden.WhyNot != reasons["flanneld-hidden"] || hidden.Environ != nil {
			t.Errorf("found %d daemons, %v; of %q the environment is read: %t, of %q: %t", len(all), err2, seen.WhyNot, seen.Environ != nil, hidden.WhyNot, hidden.Environ != nil)
		}
		r := knownSecrets(BundleOptions{}, doctor.Snapshot{Processes: known(found, err)}, nil)
		if text := string(r.clean([]byte("a of-flanneld-seen b"))); strings.Contains(text, "of-flanneld-seen") {
			t.Errorf("a secret remains: %s", text)
		}
	})
}

// Where /proc hides processes, a daemon may be among them.
func TestHiddenDaemons(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if all, err := Daemons(nil); err != nil {
			t.Errorf("found %+v, %v", all, err)
		}
		// Process 1 is this one, which /proc does not hide from itself. It has no name then.
		if err := os.WriteFile("/proc/1/comm", []byte("\n"), 0); err != nil {
			t.Fatal(err)
		}
		if all, err := Daemons(nil); err == nil {
			t.Errorf("found %+v, although processes may be hidden", all)
		}
	})
}

// A process whose arguments cannot be read has not ended.
func TestUnreadCommandLine(t *testing.T) {
	dir := t.TempDir()
	if raw, err := commandLine(dir); err != nil || len(raw) > 0 {
		t.Errorf("without the file: %q, %v", raw, err)
	}
	sh(t, "mkdir "+dir+"/cmdline")
	if raw, err := commandLine(dir); err == nil {
		t.Errorf("unread: %q", raw)
	}
}

// A kernel parameter that cannot be read may have any value, and is not missing.
func TestUnreadSysctls(t *testing.T) {
	for _, c := range []struct{ unreadable, instead string }{
		{"", ""}, {"net/ipv4/ip_forward", "mkdir"}, {"net/bridge/bridge-nf-call-iptables", "mkdir -p"}, {"net/ipv4/conf/eth0/forwarding", "mkdir"}, {"net/ipv6", "touch"}, {"net/ipv4/conf", "touch"},
	} {
		root := t.TempDir()
		sh(t, `cd `+root+`; mkdir -p net/ipv4/conf/eth0; echo 1 > net/ipv4/ip_forward; echo 0 > net/ipv4/conf/eth0/forwarding; echo 0 > net/ipv4/conf/eth0/disable_xfrm`)
		if c.unreadable != "" {
			sh(t, fmt.Sprintf("cd %s; rm -rf %s; %s %[2]s", root, c.unreadable, c.instead))
		}
		values, err := sysctls(root)
		if want := (doctor.Sysctls{"net/ipv4/ip_forward": "1", "net/ipv4/conf/eth0/forwarding": "0"}); c.unreadable == "" && (err != nil || !maps.Equal(values, want)) {
			t.Errorf("%v, %v; want %v", values, err, want)
		}
		if c.unreadable != "" && (err == nil || values["net/ipv4/ip_forward"] != "1" && c.unreadable != "net/ipv4/ip_forward") {
			t.Errorf("without %s: %v", c.unreadable, values)
		}
	}
}

// A device whose state cannot be read may be managed, by a program that runs. A container may not have the directory.
func TestUnreadManagers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer wire; mkdir -p /run/NetworkManager/devices /run/systemd/netif/links`)
		for name, dir := range map[string]string{"NetworkManager": "/run/NetworkManager/devices", "systemd-networkd": "/run/systemd/netif/links"} {
			sh(t, `mkdir `+dir+`/$(cat /sys/class/net/eth0/ifindex)`)
			if list, err := managers(); err != nil {
				t.Errorf("without %s: %v, %v", name, list, err)
			}
			cmd := exec.Command("/bin/sh", "-c", "sleep 600; :")
			cmd.Args[0] = name
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			expect := func(what string, want bool) {
				t.Helper()
				if list, err := managers(); (err != nil) != want || len(list) != 2 {
					t.Errorf("%s, %s: %v, %v", name, what, list, err)
				}
			}
			expect("an unread file", true)
			sh(t, `rmdir `+dir+`/*`)
			expect("no file", false)
			sh(t, `rmdir `+dir)
			expect("no directory", true)
			_, _ = cmd.Process.Kill(), cmd.Wait()
			expect("no directory, stopped", false)
		}
	})
}

// A directory of CNI plugins that exists and cannot be read may have any of them, so that those of later directories do not
// count. A file that cannot be read may be a plugin, unless an earlier directory has one of that name.
func TestUnreadPlugins(t *testing.T) {
	dir := t.TempDir()
	sh(t, `cd `+dir+`; mkdir bin loop last; touch bin/flannel file; ln -s bridge loop/bridge; ln -s flannel loop/flannel; ln -s none bin/gone
		touch loop/host-local last/portmap`)
	c, err := cni(Options{ConfDir: dir, BinDirs: []string{dir + "/none", dir + "/bin", dir + "/loop", dir + "/file", dir + "/last"}})
	if err != nil || len(c.Unread) != 2 || c.Unread[dir+"/file"] == "" || c.Unread[dir+"/loop/bridge"] == "" ||
		!maps.Equal(c.Plugins, map[string]bool{"flannel": false, "host-local": false}) {
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
			list, err := iptables(t.Context(), "iptables")
			if (err != nil) != hasRules || len(list) != 1 {
				t.Errorf("with rules of iptables-legacy: %t; %v, %v", hasRules, list, err)
			}
			if hasRules && !logtest.Names(err.Error(), "filter", "iptables-legacy-save", "iptable_filter") {
				t.Errorf("with rules of iptables-legacy: %v", err)
			}
		}
	})
}

// What one variant of iptables has is not lost if the program of the other one cannot be started.
func TestPartlyListedRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		sh(t, `iptables-legacy -A INPUT -s 192.0.2.1 -j DROP; cd `+dir+`
			ln -s $(command -v iptables-legacy-save) .; echo "no program" > iptables-nft-save; chmod +x iptables-nft-save`)
		t.Setenv("PATH", dir)
		list, err := iptables(t.Context(), "iptables")
		if err == nil || len(list) != 1 || list[0].Variant != ruleset.VariantLegacy || !strings.Contains(strings.Join(list[0].Lines, "\n"), "192.0.2.1") {
			t.Errorf("%v, %v", list, err)
		}
	})
}

// separate is an environment variable of TestHiddenProcesses in a PID namespace of its own.
const separate = "FLANNEL_TEST_SEPARATE"

// In a container that shares only the network with the host, another flanneld and NetworkManager may run unseen. A node may be
// a container, with systemd.
func TestHiddenProcesses(t *testing.T) {
	if os.Getenv(separate) != "" { // started below; process 1
		sh(t, "mount -t proc proc /proc")
		for name, want := range map[string]doctor.Verdict{"flanneld": doctor.Undecided, "systemd": doctor.OK} {
			if err := os.WriteFile("/proc/1/comm", []byte(name), 0); err != nil {
				t.Fatal(err)
			}
			results := doctor.Examine(Read(t.Context(), Options{SubnetFile: "/run/flannel/subnet.env", Timeout: time.Minute,
				Underlay: func() (underlay.Snapshot, error) { return underlay.Snapshot{}, nil }}))
			for _, code := range []string{"FL102", "FL206"} {
				i := slices.IndexFunc(results, func(r doctor.Result) bool { return r.Code == code })
				if i < 0 {
					t.Fatalf("%s is not among the results", code)
				}
				if r := results[i]; r.Verdict != want {
					t.Errorf("if process 1 is %s, %s is %s, %q, want %s", name, code, r.Verdict, r.Seen, want)
				}
			}
		}
		return
	}
	for _, c := range []struct {
		names  map[int]string
		hidden bool
	}{
		{map[int]string{1: "init", 2: "kthreadd"}, false},    // a host
		{map[int]string{1: "systemd", 2: "kthreadd"}, false}, // a host
		{map[int]string{1: "systemd"}, false},                // a node of kind
		{map[int]string{1: "flanneld"}, true},
		{map[int]string{1: "init", 2: "flanneld"}, true}, // podman --init
		{map[int]string{1: "docker-init", 7: "kthreadd"}, true},
		{nil, true}, // unreadable
	} {
		if err := hiddenProcesses(func(pid int) string { return c.names[pid] }); (err != nil) != c.hidden {
			t.Errorf("%v: %v", c.names, err)
		}
	}
	nstest.Run(t, func(t *testing.T) {
		outside := exec.Command("/bin/sh", "-c", "sleep 600; :")
		outside.Args[0] = "flanneld"
		if err := outside.Start(); err != nil {
			t.Fatal(err)
		}
		defer outside.Wait()         //nolint:errcheck // it is killed
		defer outside.Process.Kill() //nolint:errcheck // it may have ended
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
		cmd.Env = append(os.Environ(), separate+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
