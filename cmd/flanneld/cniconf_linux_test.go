package main

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"flannel/pkg/cniconf"
	"flannel/pkg/doctor"
	"flannel/pkg/nettest"
	"flannel/pkg/status"
)

// cniArgs leave nothing to be asked of the machine.
var cniArgs = []string{"cni-conf", "--cluster-cidr=10.244.0.0/16", "--service-cidr=10.96.0.0/12,10.97.0.0/16", "--management-cidr=192.168.1.5/24", "--management-ip=192.168.1.5",
	"--dns=10.96.0.10", "--dns-search=svc.cluster.local"}

func cniConf(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), process{args: append([]string{"--subnet-file=" + filepath.Join(t.TempDir(), "subnet.env")}, args...), stdout: &out, stderr: &err})
	return code, out.String(), err.String()
}

func TestCNIConf(t *testing.T) {
	to := filepath.Join(t.TempDir(), "net.d", "10-flannel.conflist")
	args := append(cniArgs, "--plugin=win-bridge", "--to="+to)
	read := func() string { t.Helper(); raw, _ := os.ReadFile(to); return string(raw) }
	expect := func(what string, code int, says string, more ...string) {
		t.Helper()
		got, stdout, stderr := cniConf(t, append(args, more...)...)
		if got != code || !strings.Contains(stdout+stderr, says) {
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
	expect("edited", exitNotWell, "left alone; --force overwrites it")
	expect("edited: the difference", exitNotWell, "\n-                   \"10.250.0.0/16\",\n+                   \"10.244.0.0/16\",\n")
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
		`plugin "calico"`: {"--plugin=calico"}, "speaks only 2": {"--plugin=sdnbridge", "--api-version=1"}, "invalid value": {"--dns=ten"},
	} {
		expect(says, exitUsage, says, more...)
	}
	code, _, stderr := cniConf(t, "cni-conf")
	if code != exitUsage || !strings.Contains(stderr, "service network is missing") || !strings.Contains(stderr, `plugin ""`) {
		t.Errorf("nothing is known: %d, %s", code, stderr)
	}
	code, stdout, _ := cniConf(t, append(args, "--json")...)
	var done written
	if err := json.Unmarshal([]byte(stdout), &done); err != nil || code != exitOK || done.Result != "unchanged" || done.Path != to || !cniconf.Same(done.Conf, []byte(first)) {
		t.Errorf("--json: %d, %v, %+v", code, err, done)
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
	for _, plugin := range cniconf.Plugins() {
		do(os.WriteFile(filepath.Join(dir, plugin), []byte("#!/bin/sh\ncat > "+dir+"/told\necho '{\"cniVersion\":\"0.3.0\"}'\n"), 0o755))
		_, text, stderr := cniConf(t, append(cniArgs, "--plugin="+plugin, "--to=-", "--network-name=net7")...)
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
		_, text, stderr := cniConf(t, append(append(cniArgs, "--to=-"), more...)...)
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
