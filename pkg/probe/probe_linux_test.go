package probe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
	"flannel/pkg/doctor"
	kernel "flannel/pkg/linux/underlay"
	"flannel/pkg/status"
	"flannel/pkg/underlay"
)

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
	return string(out)
}

// setup creates a node with devices and settings of all kinds, many of them
// wrong. It prevents changes while the Snapshot is read: duplicate address
// detection is off, devices get no link-local addresses, and the module ipip is
// loaded, because it creates a device in every namespace when another test loads it.
const setup = `
	for which in all default; do echo 0 > /proc/sys/net/ipv6/conf/$which/accept_dad; done
	echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode
	if ip link add early type ipip local 192.0.2.1 remote 192.0.2.2 2>/dev/null; then ip link delete early; fi
	ip link add eth0 type veth peer wire; ip link set eth0 up; ip address add 192.168.0.3/24 dev eth0
	ip link add flannel.1 type vxlan id 1 dev eth0 local 192.168.0.3 dstport 8472 nolearning; ip link set flannel.1 mtu 1450 up
	ip link add flannel-v6.1 type vxlan id 1 dev eth0 local fd00::3 dstport 8473 nolearning
	ip link add cni0 type bridge; ip link set cni0 up mtu 1500; ip address add 10.5.9.1/24 dev cni0
	ip link add veth1 type veth peer veth2; ip link set veth1 master cni0 mtu 1400
	echo 0 > /proc/sys/net/ipv4/ip_forward
	iptables -P FORWARD DROP; iptables -A INPUT -p udp --dport 8472 -j DROP; ip6tables -P INPUT DROP
	nft add table inet mine; nft 'add chain inet mine in { type filter hook input priority 0; policy drop; }'
	mkdir -p /run/flannel /run/NetworkManager/devices /run/systemd/netif/links
	printf 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' > /run/flannel/subnet.env
	printf '[device]\nmanaged=true\n' > /run/NetworkManager/devices/$(cat /sys/class/net/flannel.1/ifindex)
	printf '[device]\nmanaged=false\n' > /run/NetworkManager/devices/$(cat /sys/class/net/eth0/ifindex)
	printf 'ADMIN_STATE=configured\n' > /run/systemd/netif/links/$(cat /sys/class/net/cni0/ifindex)
	printf 'ADMIN_STATE=unmanaged\n' > /run/systemd/netif/links/$(cat /sys/class/net/eth0/ifindex)`

// listAll lists the state that reading must not change, without the states of carriers,
// which the kernel changes after the command that causes the change has ended.
const listAll = `ip -d -o link | sed 's|timer *[0-9.]*||g; s/NO-CARRIER,//; s/,LOWER_UP//; s/,M-DOWN//; s/ state [A-Z]*//'
	ip -o address; ip route show table all | sed 's/ linkdown//'; ip neigh; iptables-save | grep -v '^#'; ip6tables-save | grep -v '^#'
	nft list ruleset; grep -o -e ^br_netfilter -e '^[a-z0-9_]*table[a-z0-9_]*' /proc/modules || true; find /run /proc/sys/net -type f -exec grep -H . {} + 2>/dev/null | grep -v -e neigh -e nf_conntrack_count`

// TestRead checks what is read of a node, and that reading changes nothing.
func TestRead(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, setup)
		conf := t.TempDir()
		sh(t, `cd `+conf+`; mkdir net.d bin; echo '{"type":"flannel"}' > net.d/10-flannel.conf; echo x > net.d/readme; echo x > net.d/05-x.conflist
			touch bin/flannel bin/bridge; chmod 755 bin/flannel; mkdir bin/dir`)
		o := Options{Version: "test", SubnetFile: "/run/flannel/subnet.env", ConfDir: conf + "/net.d", BinDirs: []string{conf + "/none", conf + "/bin"}, DataDir: conf + "/networks", Timeout: time.Minute,
			Underlay: func() (underlay.Snapshot, error) { return kernel.Read(underlay.Options{}) }}
		sh(t, "mkdir -p "+o.DataDir+"/cbr0; cd "+o.DataDir+"/cbr0; touch lock last_reserved_ip.0; for i in $(seq 2 254); do echo dead > 10.5.3.$i; done")
		sh(t, listAll) // the first time, it may load modules
		before := sh(t, listAll)
		start := time.Now()
		s := Read(t.Context(), o)
		t.Logf("read in %v", time.Since(start))
		if d := cmp.Diff(strings.Split(before, "\n"), strings.Split(sh(t, listAll), "\n")); d != "" {
			t.Errorf("reading changed\n%s", d)
		}
		checkFacts(t, s)
		for code, want := range map[string]doctor.Verdict{"FL101": doctor.Fail, "FL103": doctor.Skipped, "FL201": doctor.Fail, "FL202": doctor.Warn,
			"FL203": doctor.Fail, "FL204": doctor.Fail, "FL206": doctor.OK, "FL207": doctor.Fail, "FL208": doctor.Warn, "FL301": doctor.Fail, "FL302": doctor.Fail, "FL213": doctor.Fail} {
			results := doctor.Examine(s)
			r := results[slices.IndexFunc(results, func(r doctor.Result) bool { return r.Code == code })]
			if r.Verdict != want && (code != "FL202" || r.Verdict != doctor.OK) { // br_netfilter may be loaded on the host
				t.Errorf("%s is %s, %q, want %s", code, r.Verdict, r.Seen, want)
			}
		}
	})
}

func checkFacts(t *testing.T, s doctor.Snapshot) {
	t.Helper()
	l := s.Linux
	for what, fact := range map[string]bool{"env": s.Env.Known, "daemon": s.Daemon.Known, "processes": s.Processes.Known, "interfaces": s.Interfaces.Known,
		"cni": s.CNI.Known, "sysctls": l.Sysctls.Known, "devices": l.Devices.Known, "iptables": l.IPTables.Known, "ip6tables": l.IP6Tables.Known,
		"nftables": l.NFTables.Known, "managers": l.Managers.Known, "kernel": l.Kernel != ""} {
		if !fact {
			t.Errorf("%s is not known: %+v", what, s)
		}
	}
	find := func(name string) doctor.Device {
		i := slices.IndexFunc(l.Devices.Value, func(d doctor.Device) bool { return d.Name == name })
		if i < 0 {
			t.Fatalf("no %s among %+v", name, l.Devices.Value)
		}
		return l.Devices.Value[i]
	}
	four, six, veth := find("flannel.1"), find("flannel-v6.1"), find("veth1")
	if four.Type != "vxlan" || four.VNI != 1 || four.Port != 8472 || four.MTU != 1450 || four.Parent != find("eth0").Index || four.OuterIsIPv6 || !six.OuterIsIPv6 {
		t.Errorf("%+v, %+v", four, six)
	}
	if veth.Master != find("cni0").Index || veth.Type != "veth" || find("cni0").Type != "bridge" {
		t.Errorf("%+v", veth)
	}
	if l.Sysctls.Value["net/ipv4/ip_forward"] != "0" || l.Sysctls.Value["net/ipv6/conf/all/forwarding"] == "" {
		t.Errorf("%v", l.Sysctls)
	}
	text := linesOf(l.IPTables.Value)
	if !strings.Contains(text, ":FORWARD DROP") || !strings.Contains(text, "-A INPUT -p udp -m udp --dport 8472 -j DROP") {
		t.Errorf("iptables: %s", text)
	}
	if text := linesOf(l.IP6Tables.Value); !strings.Contains(text, ":INPUT DROP") || strings.Contains(text, "8472") {
		t.Errorf("ip6tables: %s", text)
	}
	if !strings.Contains(l.NFTables.Value, `"table": "mine"`) {
		t.Errorf("nft: %s", l.NFTables.Value)
	}
	nm, networkd := l.Managers.Value[0], l.Managers.Value[1]
	if !slices.Equal(nm.Manages, []string{"flannel.1"}) || nm.Running || !slices.Equal(networkd.Manages, []string{"cni0"}) {
		t.Errorf("%+v", l.Managers.Value)
	}
	c := s.CNI.Value
	if len(c.Files) != 2 || c.Files[0].Name != "05-x.conflist" || c.Files[1].Text != "{\"type\":\"flannel\"}\n" || len(c.Plugins) != 2 || !c.Plugins["flannel"] || c.Plugins["bridge"] {
		t.Errorf("%+v", c)
	}
}

// linesOf returns the lines of all variants.
func linesOf(listings []doctor.Listing) string {
	var lines []string
	for _, l := range listings {
		lines = append(lines, l.Lines...)
	}
	return strings.Join(lines, "\n")
}

func TestFirmware(t *testing.T) {
	m, err := firmware()
	raw, readErr := os.ReadFile("/sys/class/dmi/id/sys_vendor")
	if (err == nil) != (readErr == nil) || err == nil && m.Vendor != strings.TrimSpace(string(raw)) {
		t.Errorf("%+v, %v; the file: %q, %v", m, err, raw, readErr)
	}
}

// TestTxChecksum switches checksum offload off and on, as ethtool -K does.
func TestTxChecksum(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		sh(t, `ip link add eth0 type veth peer wire; ip link add flannel.1 type vxlan id 1 dev eth0 dstport 8472`)
		for _, want := range []uint32{0, 1} {
			if _, err := ethtool("flannel.1", unix.ETHTOOL_STXCSUM, want); err != nil {
				t.Fatal(err)
			}
			if got := txChecksum("flannel.1"); !got.Known || got.Value != (want == 1) {
				t.Errorf("set to %d, it is %+v", want, got)
			}
		}
		if got := txChecksum("none"); got.Known || got.WhyNot == "" {
			t.Errorf("a device that does not exist: %+v", got)
		}
	})
}

func TestDaemons(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		// A subshell has the arguments of its shell, as every child before it executes its
		// program.
		forked := filepath.Join(t.TempDir(), "forked")
		run := func(flags uintptr, name string, args ...string) {
			cmd := exec.Command("/bin/sh", append([]string{"-c", "(echo >>" + forked + "; sleep 60; :); :"}, args...)...)
			cmd.Args[0] = name
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		}
		run(0, "/opt/bin/flanneld", "--etcd-password=hunter2", "-etcd-password", "hunter3", "--ip-masq")
		run(0, "flanneld-amd64")
		run(0, "flanneld", "x", "status")
		run(0, "other")
		run(unix.CLONE_NEWNET, "flanneld-of-another-node")
		eventually.True(t, "all have forked", func() bool {
			text, _ := os.ReadFile(forked)
			return strings.Count(string(text), "\n") >= 5
		})
		all, err := daemons([]string{"status"})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range all {
			names = append(names, p.Name)
			if text := strings.Join(p.Args, " "); strings.Contains(text, "hunter") || p.Name == "flanneld" && !strings.HasSuffix(text, "--etcd-password=[redacted] -etcd-password [redacted] --ip-masq") {
				t.Errorf("arguments: %s", text)
			}
		}
		if slices.Sort(names); !slices.Equal(names, []string{"flanneld", "flanneld-amd64"}) {
			t.Errorf("daemons: %v", names)
		}
	})
}

// A process is seen as soon as it has been started, while the kernel still executes
// its program.
func TestStartingProcess(t *testing.T) {
	for range 300 {
		cmd := exec.Command("/bin/sleep", "3600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		raw, err := commandLine(fmt.Sprintf("/proc/%d", cmd.Process.Pid))
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if seen := string(raw); seen != "/bin/sleep\x003600\x00" {
			t.Fatalf("its command line is %q, %v", seen, err)
		}
	}
}

func TestTimeoutAndErrors(t *testing.T) {
	dir := t.TempDir()
	hang := make(chan struct{})
	defer close(hang)
	s := Read(t.Context(), Options{SubnetFile: filepath.Join(dir, "subnet.env"), ConfDir: filepath.Join(dir, "none"), Timeout: 300 * time.Millisecond,
		Underlay: func() (underlay.Snapshot, error) { return kernel.Read(underlay.Options{}) },
		Cluster:  func(context.Context) doctor.Cluster { <-hang; return doctor.Cluster{} }})
	if why := s.Cluster.Ahead.WhyNot; s.Cluster.Ahead.Known || why == "" {
		t.Errorf("the store hangs: %q", why)
	}
	if c, err := cni(Options{ConfDir: filepath.Join(dir, "none"), BinDirs: []string{dir}}); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "none")) {
		t.Errorf("no CNI: %+v, %v", c, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "flanneld.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a, err := daemon(t.Context(), filepath.Join(dir, "subnet.env")); err != nil || !strings.Contains(a.Problem, status.ErrNotRunning.Error()) {
		t.Errorf("%+v, %v", a, err)
	}
}

// There are no rules of iptables-legacy if the file that names their tables is empty or
// missing, and not if it cannot be read.
func TestNoLegacyRules(t *testing.T) {
	dir := t.TempDir()
	sh(t, `cd `+dir+`; touch empty; echo filter > tables; mkdir unreadable`)
	for file, none := range map[string]bool{"missing": true, "empty": true, "tables": false, "unreadable": false} {
		if err := noLegacyRules("iptables", filepath.Join(dir, file)); (err == nil) != none {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// A file that cannot be read is neither missing nor malformed.
func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	sh(t, `cd `+dir+`; mkdir -p net.d/05-dir.conf; ln -s nowhere net.d/10-flannel.conflist; touch file; echo FLANNEL_MTU=x > subnet.env`)
	for file, want := range map[string]doctor.Verdict{"file/subnet.env": doctor.Undecided, "subnet.env": doctor.Fail, "none.env": doctor.Fail} {
		s := Read(t.Context(), Options{SubnetFile: filepath.Join(dir, file), ConfDir: filepath.Join(dir, "net.d"), Timeout: time.Minute,
			Underlay: func() (underlay.Snapshot, error) { return kernel.Read(underlay.Options{}) }})
		verdicts := map[string]doctor.Result{}
		for _, r := range doctor.Examine(s) {
			verdicts[r.Code] = r
		}
		if r := verdicts["FL103"]; r.Verdict != want {
			t.Errorf("%s: FL103 is %s, %q, want %s", file, r.Verdict, r.Seen, want)
		}
		if r := verdicts["FL301"]; r.Verdict != doctor.Undecided || !strings.Contains(r.Seen, "10-flannel.conflist") {
			t.Errorf("FL301 is %s, %q", r.Verdict, r.Seen)
		}
	}
}
