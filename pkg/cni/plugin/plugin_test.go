package plugin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"flannel/pkg/status"
)

const prevResult = `{"cniVersion":"1.1.0","ips":[{"address":"10.5.72.2/24"}]}`

func (n node) setPrev(text string) {
	if n.conf["prevResult"] = json.RawMessage(text); text == "" {
		delete(n.conf, "prevResult")
	}
}

// same reports whether two texts are equal as JSON.
func same(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%v: %s", err, a)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return cmp.Equal(x, y)
}

const delegated = `{"cniVersion":"1.1.0","ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.5.72.0/24"}]],"routes":[{"dst":"10.5.0.0/16"}],"type":"host-local"},` +
	`"mtu":1450,"name":"cbr0","type":"fake-bridge"}`

// The calls of the delegate from ADD to DEL of a pod.
func TestLife(t *testing.T) {
	t.Setenv(playOS, "linux")
	n := newNode(t)
	add := n.run("ADD", "pod1", "eth0")
	if add.err != nil || !same(t, add.stdout, `{"cniVersion":"1.1.0","ips":[{"address":"10.5.72.2/24"}]}`) {
		t.Fatalf("ADD: %+v", add)
	}
	command, calls, _ := strings.Cut(n.takeCalls(), " pod1 eth0 ")
	if command != "ADD" || !same(t, calls, delegated) {
		t.Errorf("%s %s", command, calls)
	}
	if diff := cmp.Diff([]string{"pod1"}, n.saved()); diff != "" {
		t.Error(diff)
	}
	if saved := n.read("data/pod1"); !same(t, saved, strings.TrimSuffix(delegated, "}")+`,"flannelIfName":"eth0"}`) {
		t.Errorf("saved: %s", saved)
	}
	if info, err := os.Stat(n.path("data/pod1")); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}

	n.setPrev(prevResult)
	if s := n.run("CHECK", "pod1", "eth0"); s.err != nil {
		t.Errorf("%+v", s)
	}
	if calls := n.takeCalls(); !strings.Contains(calls, `"prevResult":`+prevResult) || strings.Contains(calls, "flannelIfName") {
		t.Error(calls)
	}
	n.write("bin/DEL.error", `{"cniVersion":"1.1.0","code":11,"msg":"later"}`)
	if s := n.run("DEL", "pod1", "eth0"); s.err == nil || s.err.Code != types.ErrTryAgainLater || !strings.Contains(s.err.Msg, "later") || len(n.saved()) != 1 {
		t.Errorf("DEL with a failing delegate: %+v, saved %v", s.err, n.saved())
	}
	_ = os.Remove(n.path("bin/DEL.error"))
	n.takeCalls()
	// The subnet of the node has changed, or is missing: DEL uses the saved one.
	n.write("subnet.env", strings.ReplaceAll(envText, "10.5.72", "10.5.9"))
	if s := n.run("CHECK", "pod1", "eth0"); s.err == nil || s.err.Code != errSubnetChanged || !strings.Contains(s.err.Msg, "10.5.9.0/24") {
		t.Errorf("CHECK after a change of the subnet: %+v", s.err)
	}
	n.write("subnet.env", strings.ReplaceAll(envText, "1450", "1400"))
	if s := n.run("CHECK", "pod1", "eth0"); s.err == nil || s.err.Code != errSubnetChanged || !strings.Contains(s.err.Msg, "1400") {
		t.Errorf("CHECK after a change of the MTU: %+v", s.err)
	}
	_ = os.Remove(n.path("subnet.env"))
	if s := n.run("CHECK", "pod1", "eth0"); s.err == nil || s.err.Code != types.ErrTryAgainLater {
		t.Errorf("CHECK without a subnet file: %+v", s.err)
	}
	if s := n.run("DEL", "pod1", "eth0"); s.err != nil || len(n.saved()) != 0 {
		t.Errorf("DEL: %+v, saved %v", s.err, n.saved())
	}
	if calls := n.takeCalls(); !strings.HasPrefix(calls, "DEL pod1 eth0 ") || !strings.Contains(calls, "10.5.72.0/24") || !strings.Contains(calls, "prevResult") {
		t.Error(calls)
	}
	for range 2 {
		if s := n.run("DEL", "pod1", "eth0"); s.err != nil || n.takeCalls() != "" {
			t.Errorf("repeated DEL: %+v", s.err)
		}
	}
	if s := n.run("CHECK", "pod1", "eth0"); s.err == nil || s.err.Code != types.ErrUnknownContainer {
		t.Errorf("CHECK after DEL: %+v", s.err)
	}
}

// The result is in the CNI version of the configuration.
func TestVersions(t *testing.T) {
	n := newNode(t)
	for version, want := range map[string]string{
		"":      `"ip4"`,
		"0.1.0": `"ip4"`, "0.2.0": `"ip4"`, "0.3.0": `"version": "4"`, "0.3.1": `"version": "4"`, "0.4.0": `"version": "4"`,
		"1.0.0": `"cniVersion": "1.0.0"`, "1.1.0": `"cniVersion": "1.1.0"`,
	} {
		n.conf["cniVersion"] = version
		n.setPrev(prevResult)
		if s := n.run("ADD", "pod1", "eth0"); s.err != nil || !strings.Contains(s.stdout, want) {
			t.Errorf("ADD %s: %+v %s", version, s.err, s.stdout)
		}
		n.setPrev("")
		if s := n.run("DEL", "pod1", "eth0"); s.err != nil {
			t.Errorf("DEL %s: %+v", version, s.err)
		}
	}
	n.conf["cniVersion"] = "2.0.0"
	if s := n.run("ADD", "pod1", "eth0"); s.err == nil || s.err.Code != types.ErrIncompatibleCNIVersion {
		t.Errorf("%+v", s)
	}
	for _, command := range []string{"STATUS", "GC"} {
		n.conf["cniVersion"] = "1.0.0"
		if s := n.run(command, "", ""); s.err == nil || s.err.Code != types.ErrIncompatibleCNIVersion {
			t.Errorf("%s before 1.1.0: %+v", command, s.err)
		}
	}
	s := n.run("VERSION", "", "")
	if !strings.Contains(s.stdout, `"supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]`) ||
		!strings.Contains(s.stdout, `"implementation":"flanneld","release":"v1.2.3"`) {
		t.Errorf("%+v", s)
	}
}

// Windows delegates support only older CNI versions and no CHECK. The result is in
// the version of the configuration nevertheless.
func TestWindowsLife(t *testing.T) {
	t.Setenv(playOS, "windows")
	t.Setenv("FAKE_VERSIONS", `"0.2.0" "0.3.0"`)
	n := newNode(t)
	n.conf["delegate"] = map[string]any{"type": "fake-bridge", "policies": []any{map[string]any{"name": "EndpointPolicy",
		"value": map[string]any{"Type": "SDNRoute", "Settings": map[string]any{"DestinationPrefix": "10.96.0.0/12"}}}}}
	n.write("bin/VERSION.answer", `{"cniVersion":"0.3.0","supportedVersions":["0.1.0","0.2.0","0.3.0"]}`)
	n.write("bin/ADD.answer", `{"cniVersion":"0.2.0","ip4":{"ip":"10.5.72.3/24"}}`)
	sandbox := "CNI_NETNS=container:box1"
	add := n.run("ADD", "pod1", "eth0", sandbox)
	if add.err != nil || !strings.Contains(add.stdout, `"cniVersion": "1.1.0"`) || !strings.Contains(add.stdout, `"10.5.72.3/24"`) {
		t.Fatalf("ADD: %+v", add)
	}
	if saved := n.read("data/box1"); !strings.Contains(saved, `"cniVersion":"0.3.0"`) || !strings.Contains(saved, `"subnet":"10.5.72.0/24"`) {
		t.Error(saved)
	}
	n.takeCalls()
	n.setPrev(add.stdout)
	for endpoint, want := range map[string]string{
		"": "box1_cbr0 not found",
		`{"Network":"cbr0","IPs":["10.5.72.3"],"Policies":[{"Type":"SDNRoute","Settings":{"DestinationPrefix":"10.96.0.0/12"}}]}`: "",
		`{"Network":"cbr0","IPs":["10.5.72.9"],"Policies":[{"Type":"SDNRoute","Settings":{"DestinationPrefix":"10.96.0.0/12"}}]}`: "without 10.5.72.3",
		`{"Network":"cbr0","IPs":["10.5.72.3"]}`: "no policy SDNRoute",
	} {
		if endpoint != "" {
			n.write("bin/box1_cbr0.endpoint", endpoint)
		} else {
			_ = os.Remove(n.path("bin/box1_cbr0.endpoint"))
		}
		s := n.run("CHECK", "pod1", "eth0", sandbox)
		if want == "" && s.err != nil || want != "" && (s.err == nil || s.err.Code != errEndpointDiffers || !strings.Contains(s.err.Msg, want)) {
			t.Errorf("%s: %+v", endpoint, s.err)
		}
	}
	if s := n.run("STATUS", "", ""); s.err != nil {
		t.Error(s.err)
	}
	if calls := n.takeCalls(); strings.Contains(calls, "CHECK") || strings.Contains(calls, "STATUS") {
		t.Error(calls)
	}
	if s := n.run("DEL", "pod1", "eth0", sandbox); s.err != nil || len(n.saved()) > 0 || strings.Count(n.takeCalls(), "\n") != 1 {
		t.Errorf("%+v, %v", s.err, n.saved())
	}
}

// A delegate that does not support the version of the configuration is called in
// its own version; the result is in the version of the configuration.
func TestOlderDelegate(t *testing.T) {
	n := newNode(t)
	n.write("bin/VERSION.answer", `{"cniVersion":"1.0.0","supportedVersions":["0.1.0","0.3.1","0.3.0"]}`)
	n.write("bin/ADD.answer", `{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.5.72.2/24"}]}`)
	old := `FAKE_VERSIONS="0.1.0" "0.3.0" "0.3.1"`
	if s := n.run("ADD", "pod1", "eth0", old); s.err != nil || !strings.Contains(s.stdout, `"cniVersion": "1.1.0"`) {
		t.Fatalf("%+v", s)
	}
	if !strings.Contains(n.read("data/pod1"), `"cniVersion":"0.3.1"`) {
		t.Error(n.read("data/pod1"))
	}
	n.takeCalls()
	if s := n.run("DEL", "pod1", "eth0", old); s.err != nil || strings.Count(n.takeCalls(), "\n") != 1 {
		t.Errorf("DEL: %+v", s.err)
	}
	n.write("bin/VERSION.answer", `{"cniVersion":"9.0.0","supportedVersions":["9.0.0"]}`)
	if s := n.run("ADD", "pod1", "eth0", old); s.err == nil || s.err.Code != types.ErrIncompatibleCNIVersion {
		t.Errorf("no version in common: %+v", s.err)
	}
}

func TestNoSubnetFile(t *testing.T) {
	n := newNode(t)
	_ = os.Remove(n.path("subnet.env"))
	for _, c := range []struct {
		text, want string
		code       uint
	}{{"", "is missing", types.ErrTryAgainLater}, {strings.Replace(envText, "FLANNEL_MTU=1450\n", "", 1), "FLANNEL_MTU is missing", types.ErrDecodingFailure}} {
		if c.text != "" {
			n.write("subnet.env", c.text)
		}
		s := n.run("ADD", "pod1", "eth0")
		if s.err == nil || s.err.Code != c.code || !strings.Contains(s.err.Msg, n.path("subnet.env")) || !strings.Contains(s.err.Msg, c.want) || !strings.Contains(s.err.Details, "flanneld status") {
			t.Errorf("%+v", s.err)
		}
		if len(n.saved()) > 0 || n.takeCalls() != "" {
			t.Error("ADD saved a configuration or called the delegate")
		}
	}
	_ = os.Remove(n.path("subnet.env"))
	wait := n.start("ADD", "pod1", "eth0", patient+"=1")
	n.write("subnet.env", envText)
	if s := wait(); s.err != nil {
		t.Errorf("ADD with a subnet file that is written during the wait: %+v", s.err)
	}
}

// DEL succeeds if the saved file is invalid, and removes it.
func TestUnreadable(t *testing.T) {
	for _, text := range []string{"", "{", "null", "[]", `{"name":"cbr0"}`, `{"type":"fake-bridge"}`, `{"name":"cbr0","type":"flannel"}`, `{"name":"cbr0","type":"../x"}`, "\x00\xff"} {
		n := newNode(t)
		n.write("data/pod1", text)
		if s := n.run("DEL", "pod1", "eth0"); s.err != nil || !strings.Contains(s.stderr, "pod1") || len(n.saved()) > 0 {
			t.Errorf("%q: %+v %s", text, s.err, s.stderr)
		}
		if calls := n.takeCalls(); !strings.HasPrefix(calls, "DEL pod1 eth0 ") || !strings.Contains(calls, "10.5.72.0/24") {
			t.Errorf("%q: %s", text, calls)
		}
		n.write("data/pod1", text)
		_ = os.Remove(n.path("subnet.env"))
		if s := n.run("DEL", "pod1", "eth0"); s.err != nil || len(n.saved()) > 0 || !strings.HasPrefix(n.takeCalls(), "DEL pod1 eth0 ") {
			t.Errorf("%q without a subnet: %+v", text, s.err)
		}
	}
	n := newNode(t)
	n.write("data/pod1/file", "") // a directory that is not empty
	if s := n.run("DEL", "pod1", "eth0"); s.err != nil || !strings.HasPrefix(n.takeCalls(), "DEL pod1 eth0 ") {
		t.Errorf("a directory: %+v", s.err)
	}
}

// Several interfaces of one container, in one network or in several that share a
// data directory.
func TestSeveralInterfaces(t *testing.T) {
	n := newNode(t)
	for _, ifName := range []string{"eth0", "net1", "net2", "net1"} {
		if s := n.run("ADD", "pod1", ifName); s.err != nil {
			t.Fatal(s.err)
		}
	}
	n.conf["name"] = "other"
	if s := n.run("ADD", "pod1", "net3"); s.err != nil {
		t.Fatal(s.err)
	}
	if diff := cmp.Diff([]string{"pod1", "pod1@net1", "pod1@net2", "pod1@net3"}, n.saved()); diff != "" {
		t.Error(diff)
	}
	n.takeCalls()
	for _, ifName := range []string{"net1", "net1", "net3", "eth0", "net2", "eth0"} {
		if s := n.run("DEL", "pod1", ifName); s.err != nil {
			t.Error(s.err)
		}
	}
	var deleted []string
	for line := range strings.Lines(n.takeCalls()) {
		deleted = append(deleted, strings.Fields(line)[2])
	}
	if diff := cmp.Diff([]string{"net1", "net3", "eth0", "net2"}, deleted); diff != "" || len(n.saved()) > 0 {
		t.Error(diff, n.saved())
	}
	n.write("data/pod2", `{"name":"cbr0","type":"fake-bridge"}`) // as the upstream plugin saves it
	if s := n.run("ADD", "pod2", "net1"); s.err != nil || !slices.Equal(n.saved(), []string{"pod2", "pod2@net1"}) {
		t.Errorf("ADD beside a file of the upstream plugin: %+v, %v", s.err, n.saved())
	}
}

func TestDelegateFails(t *testing.T) {
	n := newNode(t)
	for text, want := range map[string]types.Error{
		`{"cniVersion":"1.1.0","code":7,"msg":"no master","details":"eth9"}`: {Code: 7, Msg: "no master", Details: "eth9"},
		`{"msg":"no code"}`: {Code: types.ErrInternal, Msg: "no code"},
		"panic: \xff":       {Code: types.ErrInternal, Msg: "panic"},
		"":                  {Code: types.ErrInternal, Msg: "exit status 1"},
	} {
		n.write("bin/ADD.error", text)
		s := n.run("ADD", "pod1", "eth0")
		if s.err == nil || s.err.Code != want.Code || s.err.Details != want.Details || !strings.Contains(s.err.Msg, want.Msg) || !strings.Contains(s.err.Msg, "fake-bridge") {
			t.Errorf("%q: %+v", text, s.err)
		}
	}
	_ = os.Remove(n.path("bin/ADD.error"))
	for _, text := range []string{"", "null", "[]", `{"cniVersion":"7"}`} {
		n.write("bin/ADD.answer", text)
		if s := n.run("ADD", "pod1", "eth0"); s.err == nil || s.err.Code != types.ErrDecodingFailure {
			t.Errorf("result %q: %+v", text, s.err)
		}
	}
	n.conf["delegate"] = map[string]any{"type": "fake-none"}
	if s := n.run("ADD", "pod2", "eth0"); s.err == nil || s.err.Code != types.ErrInvalidNetworkConfig || !strings.Contains(s.err.Msg, "fake-none") {
		t.Errorf("%+v", s.err)
	}
}

func (n node) expectStatus(what string, code uint, text string) {
	n.Helper()
	s := n.run("STATUS", "", "")
	if s.err == nil {
		s.err = &types.Error{}
	}
	if s.err.Code != code || !strings.Contains(s.err.Msg, text) {
		n.Errorf("%s: %+v, want code %d and %q", what, s.err, code, text)
	}
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	expect := n.expectStatus
	expect("ready", 0, "")
	n.write("bin/STATUS.error", `{"code":50,"msg":"no bridge today"}`)
	expect("the delegate is not ready", 50, "no bridge today")
	n.write("bin/VERSION.answer", `{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}`)
	expect("the delegate does not support STATUS", 0, "")
	n.write("bin/VERSION.answer", ``)
	expect("the delegate fails", 50, "fake-bridge")
	n.conf["delegate"] = map[string]any{"type": "fake-none"}
	expect("the delegate is not installed", 50, "fake-none")
	_ = os.Remove(n.path("subnet.env"))
	expect("no subnet file", 50, "subnet.env is missing")
}

func TestSocket(t *testing.T) {
	for _, file := range []string{"/run/flannel/subnet.env", "/run/flannel/other.env"} {
		if file = filepath.FromSlash(file); socketOf(file) != status.Socket(file) {
			t.Errorf("%s: %s, but flanneld uses %s", file, socketOf(file), status.Socket(file))
		}
	}
}

// No container ID or interface name leads to a file outside the data directory.
func TestContainerIDs(t *testing.T) {
	n := newNode(t)
	for _, id := range []string{"..", ".", "a/b", "../x", `a\b`, "a:b", "", "a@b"} {
		if s := n.run("DEL", id, "eth0"); s.err == nil {
			t.Errorf("DEL accepts container ID %q", id)
		}
	}
	if s := n.run("ADD", "pod1", `..\eth0`); s.err == nil {
		t.Error("ADD accepts an interface name with a path separator")
	}
	if files, _ := filepath.Glob(n.path("*")); len(files) != 2 {
		t.Error(files)
	}
}
