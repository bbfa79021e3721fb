package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"flannel/internal/test/etcdtest"
	"flannel/internal/test/logtest"
	"flannel/internal/test/nettest"
	"flannel/pkg/cni/conflist"
	"flannel/pkg/doctor"
	"flannel/pkg/status"
)

// cniArgs leave nothing to be asked of the machine or the cluster; the rest is of a network configuration.
var cniArgs = []string{"cni-conf", "--service-cidr=10.96.0.0/12,10.97.0.0/16", "--management-cidr=192.168.1.5/24", "--management-ip=192.168.1.5",
	"--dns=10.96.0.10", "--dns-search=svc.cluster.local"}

const (
	overlayConf = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 4096, "Port": 4789}}`
	bridgeConf  = `{"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}`
)

// windowsNode is where cni-conf looks and keeps its record.
type windowsNode struct {
	*testing.T
	dir string
}

func newWindowsNode(t *testing.T, netConf string) windowsNode {
	n := windowsNode{t, t.TempDir()}
	n.write("net-conf.json", netConf)
	return n
}

func (n windowsNode) write(name, text string) {
	n.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o644); err != nil {
		n.Fatal(err)
	}
}

func (n windowsNode) cniConf(args ...string) (code int, stdout, stderr string) {
	n.Helper()
	return flanneldSays(n.Context(), append([]string{"--kube-subnet-mgr", "--net-config-path=" + filepath.Join(n.dir, "net-conf.json"),
		"--subnet-file=" + filepath.Join(n.dir, "run", "subnet.env")}, args...)...)
}

func TestCNIConf(t *testing.T) {
	n := newWindowsNode(t, bridgeConf)
	to := filepath.Join(n.dir, "net.d", "10-flannel.conflist")
	args := append(cniArgs, "--to="+to)
	read := func() string { t.Helper(); raw, _ := os.ReadFile(to); return string(raw) }
	expect := func(what string, code int, says string, more ...string) {
		t.Helper()
		got, stdout, stderr := n.cniConf(append(args, more...)...)
		if got != code || !logtest.Names(stdout+stderr, strings.Fields(says)...) {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s%s", what, got, code, says, stdout, stderr)
		}
	}
	expect("the first time", exitOK, to+": written")
	first := read()
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o644 || !strings.Contains(first, `"name": "cbr0"`) {
		t.Fatalf("%v, %v\n%s", info, err, first)
	}
	expect("again", exitOK, "unchanged")
	var any any
	if err := json.Unmarshal([]byte(first), &any); err != nil {
		t.Fatal(err)
	}
	compact, _ := json.Marshal(any)
	if err := os.WriteFile(to, compact, 0o644); err != nil {
		t.Fatal(err)
	}
	expect("laid out in another way", exitOK, "unchanged")
	edited := strings.Replace(first, "10.244.0.0/16", "10.250.0.0/16", 1)
	if err := os.WriteFile(to, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	expect("edited", exitNotReady, "--force")
	expect("kept", exitOK, "--force", "--keep")
	expect("kept, though asked for something else", exitOK, "--force", "--keep", "--cluster-cidr=10.0.0.0/8")
	expect("edited: the difference", exitNotReady, "\n-                   \"10.250.0.0/16\",\n+                   \"10.244.0.0/16\",\n")
	if read() != edited {
		t.Error("an edit is gone")
	}
	expect("shown only", exitOK, `"type": "flannel"`, "--to=-")
	expect("forced", exitOK, "overwritten", "--force")
	if read() != first {
		t.Error("--force did not overwrite")
	}
	expect("help", exitOK, "-service-cidr", "--help")
	for says, more := range map[string][]string{
		`plugin "calico"`: {"--plugin=calico"}, "sdnbridge 2": {"--plugin=sdnbridge", "--api-version=1"}, `"ten" -dns`: {"--dns=ten"},
	} {
		expect(says, exitUsage, says, more...)
	}
	n.write("net-conf.json", "{")
	code, _, stderr := n.cniConf("cni-conf")
	if code != exitUsage || !logtest.Names(stderr, `plugin ""`, "net-conf.json") || strings.Count(stderr, "\n") < 3 {
		t.Errorf("nothing is known: %d, %s", code, stderr)
	}
	n.write("net-conf.json", bridgeConf)
	code, stdout, _ := n.cniConf(append(args, "--json")...)
	var done cniConfAnswer
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || code != exitOK || done.Result != "unchanged" || done.Path != to || !conflist.Equal(done.Conf, []byte(first)) {
		t.Errorf("--json: %d, %v, %+v", code, err, done)
	}
}

// What cni-conf wrote and nobody edited is replaced without --force; a lost record makes it somebody's work.
func TestCNIConfAgain(t *testing.T) {
	n := newWindowsNode(t, overlayConf)
	to := filepath.Join(n.dir, "10-flannel.conf")
	args := append(cniArgs, "--to="+to)
	expect := func(what string, code int, says, holds string, more ...string) {
		t.Helper()
		got, stdout, stderr := n.cniConf(append(args, more...)...)
		raw, err := os.ReadFile(to)
		if err != nil || got != code || !logtest.Names(stdout+stderr, strings.Fields(says)...) || !strings.Contains(string(raw), holds) {
			t.Errorf("%s: exit code %d, want %d, %q, and a file with %q: %v\n%s%s\n%s", what, got, code, says, holds, err, stdout, stderr, raw)
		}
	}
	expect("the first time", exitOK, "written", `"flannel.4096"`)
	n.write("net-conf.json", `{"Network": "10.8.0.0/16", "Backend": {"Type": "vxlan", "VNI": 5000, "Port": 4789, "MacPrefix": "0e-3b"}}`)
	expect("another configuration", exitOK, "+   \"name\": \"flannel.5000\"", `"0E-3B"`)
	expect("again", exitOK, "unchanged", `"10.8.0.0/16"`)
	n.write("net-conf.json", `{"Network": "10.8.0.0/16", "Backend": {"Type": "host-gw", "Name": "net0"}}`)
	expect("another backend", exitOK, "updated", `"win-bridge"`)
	expect("flags count for more", exitOK, "updated", `"mine"`, "--network-name=mine", "--plugin=sdnbridge")

	raw, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	n.write("10-flannel.conf", strings.Replace(string(raw), "10.96.0.0/12", "10.100.0.0/12", 1))
	expect("edited", exitNotReady, "--force", "10.100.0.0/12")
	n.write("10-flannel.conf", string(raw))
	expect("the edit is taken back", exitOK, "updated", `"net0"`)
	expect("Services of a family that pods do not have", exitOK, "unchanged", `"net0"`, "--service-cidr=fd00::/112")
	if err := os.Remove(filepath.Join(n.dir, "run", "cni-conf.json")); err != nil {
		t.Fatal(err)
	}
	expect("the record is lost", exitNotReady, "--force", `"net0"`, "--network-name=mine")
	expect("it has the expected content, so it is ours", exitOK, "unchanged", `"net0"`)
	expect("another parameter", exitOK, "updated", `"mine"`, "--network-name=mine")
	n.write("run/cni-conf.json", "{")
	expect("the record cannot be read", exitNotReady, "--force", `"mine"`)

	expect("no plugins", exitError, n.dir+" flannel.exe win-bridge.exe host-local.exe", `"mine"`, "--plugin-dir="+n.dir)
	for _, name := range []string{"flannel.exe", "win-bridge.exe", "host-local.exe"} {
		n.write(name, "")
	}
	expect("plugins are there", exitOK, "overwritten", `"net0"`, "--force", "--plugin-dir="+n.dir)
}

// Services of a family that pods do not have are left out: in a dual-stack cluster an overlay's node has IPv4 alone.
func TestCNIConfAsksForServices(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ServiceCIDRList","apiVersion":"networking.k8s.io/v1","items":[{"spec":{"cidrs":["10.98.0.0/16","fd00:98::/112"]}}]}`) //nolint:errcheck // the client tells
	}))
	defer api.Close()
	dual := func(conf string) string {
		return strings.Replace(conf, "{", `{"EnableIPv6": true, "IPv6Network": "fd00:244::/48", `, 1)
	}
	for conf, both := range map[string]bool{overlayConf: false, bridgeConf: false, dual(overlayConf): false, dual(bridgeConf): true} {
		code, stdout, stderr := newWindowsNode(t, conf).cniConf("--kube-api-url="+api.URL, "cni-conf", "--to=-", "--management-ip=192.168.1.5")
		if code != exitOK || !strings.Contains(stdout, "10.98.0.0/16") || strings.Contains(stdout, "fd00:98::/112") != both {
			t.Errorf("%s: %d %s %s", conf, code, stdout, stderr)
		}
	}
}

// With leases in etcd, the configuration is there.
func TestCNIConfFromEtcd(t *testing.T) {
	s := etcdtest.Start(t)
	if _, err := s.Client().Put(t.Context(), "/here/config", overlayConf); err != nil {
		t.Fatal(err)
	}
	// A process of its own: it sets the log of the library that the test's own client writes to, too.
	cmd := exec.Command(os.Args[0], append([]string{"--etcd-endpoints=" + s.Endpoint(), "--etcd-prefix=/here", "--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env"), "cni-conf", "--to=-", "--timeout=2m"}, cniArgs[1:]...)...)
	cmd.Env = append(os.Environ(), beFlanneld+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"win-overlay"`) || !strings.Contains(string(out), `"10.244.0.0/16"`) {
		t.Errorf("%v %s", err, out)
	}
}

// What is wrong with the key in etcd is named, also that it is missing. etcd must have answered within --timeout.
func TestNoConfigurationInEtcd(t *testing.T) {
	s := etcdtest.Start(t)
	for _, value := range []string{"missing", "empty"} {
		if value == "empty" {
			if _, err := s.Client().Put(t.Context(), "/here/config", ""); err != nil {
				t.Fatal(err)
			}
		}
		var out []byte
		for timeout := 2 * time.Second; ; timeout *= 2 {
			// A process of its own, as above.
			cmd := exec.Command(os.Args[0], "--etcd-endpoints="+s.Endpoint(), "--etcd-prefix=/here", "check-config", "--json", "--timeout="+timeout.String())
			cmd.Env = append(os.Environ(), beFlanneld+"=1")
			out, _ = cmd.Output()
			if value == "empty" && cmd.ProcessState.ExitCode() == exitNotReady || value == "missing" && logtest.Names(string(out), "etcdctl", "/here/config") {
				break
			}
			if timeout > time.Minute {
				t.Fatalf("%s: status %d: %s", value, cmd.ProcessState.ExitCode(), out)
			}
		}
	}
}

// Without etcd, the first line says so and names it, and the command waits for 3 s.
func TestCNIConfWithoutEtcd(t *testing.T) {
	etcd := "http://" + nettest.Address(t)
	var problems strings.Builder
	// A process of its own, as above.
	cmd := exec.Command(os.Args[0], "--etcd-endpoints="+etcd, "--subnet-file="+filepath.Join(t.TempDir(), "subnet.env"), "cni-conf", "--to=-")
	cmd.Env, cmd.Stderr = append(os.Environ(), beFlanneld+"=1"), &problems
	err := cmd.Run()
	code := cmd.ProcessState.ExitCode()
	first, _, _ := strings.Cut(problems.String(), "\n")
	if code != exitUsage || !logtest.Names(first, "cni-conf", etcd, "--kube-subnet-mgr") {
		t.Errorf("%v, first line %q of\n%s", err, first, &problems)
	}
	if _, help, _ := flanneldSays(t.Context(), "cni-conf", "--help"); !regexp.MustCompile(`--timeout DURATION .*\(default 3s\)`).MatchString(help) {
		t.Errorf("the time that it waits is another one:\n%s", help)
	}
}

// TestRealPlugin hands each form to the real flannel plugin, and sees what it hands on to the one that it delegates to:
// those run on Windows alone, so a script stands in that keeps what it is told.
func TestRealPlugin(t *testing.T) {
	dir := t.TempDir()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.WriteFile(filepath.Join(dir, "subnet.env"), []byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"), 0o644))
	flannel := nettest.Tool(t, "cni/flannel")
	for _, plugin := range conflist.Plugins() {
		do(os.WriteFile(filepath.Join(dir, plugin), []byte("#!/bin/sh\ncat > "+dir+"/told\necho '{\"cniVersion\":\"0.3.0\"}'\n"), 0o755))
		_, text, stderr := newWindowsNode(t, overlayConf).cniConf(append(cniArgs, "--plugin="+plugin, "--to=-", "--network-name=net7")...)
		var conf map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &conf); err != nil {
			t.Fatalf("%s: %v, %s", plugin, err, stderr)
		}
		// The real one reads subnet.env of its own machine; here it is told of another.
		conf["subnetFile"], _ = json.Marshal(filepath.Join(dir, "subnet.env"))
		conf["dataDir"], _ = json.Marshal(dir)
		input, err := json.Marshal(conf)
		do(err)
		cmd := exec.Command(flannel)
		cmd.Stdin = bytes.NewReader(input)
		cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=pod1", "CNI_NETNS=/none", "CNI_IFNAME=eth0", "CNI_PATH=" + dir, "PATH=" + os.Getenv("PATH")}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", plugin, err, out)
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, "told"))
		do(err)
		var told struct{ Name, Type string }
		do(json.Unmarshal(raw, &told))
		if told.Name != "net7" || told.Type != plugin || !strings.Contains(string(raw), `"subnet":"10.244.3.0/24"`) || !strings.Contains(string(raw), "OutBoundNAT") ||
			!strings.Contains(string(raw), "10.96.0.0/12") {
			t.Errorf("%s is told %s", plugin, raw)
		}
	}
}

// The doctor must find nothing wrong with what cni-conf writes, in any form.
func TestDoctorLikesCNIConf(t *testing.T) {
	node := &status.Node{Networks: []status.Network{{Network: netip.MustParsePrefix("10.244.0.0/16"), Subnet: netip.MustParsePrefix("10.244.3.0/24")}}}
	for _, more := range [][]string{{"--plugin=win-overlay", "--api-version=1"}, {"--plugin=win-overlay"}, {"--plugin=win-bridge", "--api-version=1"},
		{"--plugin=win-bridge", "--to=-"}, {"--plugin=sdnoverlay"}, {"--plugin=sdnbridge"}} {
		_, text, stderr := newWindowsNode(t, overlayConf).cniConf(append(append(cniArgs, "--to=-"), more...)...)
		s := doctor.Snapshot{OS: "windows", Daemon: doctor.Known(doctor.Answer{Report: &status.Report{Node: node}}),
			CNI:     doctor.Known(doctor.CNI{Files: []doctor.CNIFile{{Name: "10-flannel.conf", Text: text}}}),
			Cluster: doctor.Cluster{Services: doctor.Known([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})}}
		for _, r := range doctor.Examine(s) {
			if (r.Code == "FL511" || r.Code == "FL301") && r.Verdict != doctor.OK {
				t.Errorf("%v: %s is %s, %s (%s)", more, r.Code, r.Verdict, r.Seen, stderr)
			}
		}
	}
}
