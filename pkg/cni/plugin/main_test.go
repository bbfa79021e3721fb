package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// The test binary also serves as the plugin and, in tests without a network, as the
// delegate. The name under which it is started selects the role.
func TestMain(m *testing.M) {
	switch name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe"); {
	case name == "flannel":
		bePlugin(cmp.Or(os.Getenv(playOS), runtime.GOOS))
	case strings.HasPrefix(name, "fake-"):
		beDelegate()
	default:
		os.Exit(m.Run())
	}
}

// playOS is the environment variable that overrides runtime.GOOS in the plugin. With patient, the plugin waits for a
// subnet file as long as a test on a busy machine.
const (
	playOS  = "FLANNEL_TEST_OS"
	patient = "FLANNEL_TEST_PATIENT"
)

func bePlugin(system string) {
	check(KillDelegateOnExit())
	const patience = 5 * time.Minute
	p := &Plugin{OS: system, Stderr: os.Stderr, SubnetWait: 200 * time.Millisecond, LockWait: patience, Endpoint: preparedEndpoint}
	if os.Getenv(patient) != "" {
		p.SubnetWait = patience
	}
	if system != "windows" {
		p.Endpoint = nil
	}
	skel.PluginMainFuncs(p.Funcs(), Version("v1.2.3"), "test")
}

// preparedEndpoint returns the HNS endpoint that a test has written to NAME.endpoint.
func preparedEndpoint(_ context.Context, name string) (e Endpoint, err error) {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), name+".endpoint"))
	if err != nil {
		return e, errNoEndpoint
	}
	return e, json.Unmarshal(raw, &e)
}

func appendTo(path, text string) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	check(err)
	_, err = f.WriteString(text)
	check(err)
	check(f.Close())
}

// beDelegate records its call in the file "calls", and prints what a test has
// written to COMMAND.answer or COMMAND.error beside it. It hangs while the file
// COMMAND.hang exists.
func beDelegate() {
	dir := filepath.Dir(os.Args[0])
	command := os.Getenv("CNI_COMMAND")
	stdin, err := io.ReadAll(os.Stdin)
	check(err)
	appendTo(filepath.Join(dir, "calls"), fmt.Sprintf("%s %s %s %s\n", command, os.Getenv("CNI_CONTAINERID"), os.Getenv("CNI_IFNAME"), stdin))
	for exists(filepath.Join(dir, command+".hang")) {
		appendTo(filepath.Join(dir, "beat"), ".") // never shorter, also if it is killed here
		time.Sleep(5 * time.Millisecond)          // between two beats
	}
	if supported := os.Getenv("FAKE_VERSIONS"); command != "VERSION" && supported != "" {
		var c struct{ CNIVersion string }
		check(json.Unmarshal(stdin, &c))
		if !strings.Contains(supported, `"`+c.CNIVersion+`"`) {
			_ = types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", "").Print()
			os.Exit(1)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, command+".error")); err == nil {
		fmt.Print(string(text))
		os.Exit(1)
	}
	if text, err := os.ReadFile(filepath.Join(dir, command+".answer")); err == nil {
		fmt.Print(string(text))
	}
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// node is a directory with the files of a node and a fake delegate.
type node struct {
	*testing.T
	dir  string
	conf map[string]any
}

func newNode(t *testing.T) node {
	n := node{T: t, dir: t.TempDir()}
	n.conf = map[string]any{"cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "subnetFile": n.path("subnet.env"), "dataDir": n.path("data"),
		"delegate": map[string]any{"type": "fake-bridge"}}
	n.write("subnet.env", envText)
	n.write("bin/ADD.answer", `{"cniVersion":"1.0.0","ips":[{"address":"10.5.72.2/24"}]}`)
	n.write("bin/VERSION.answer", `{"cniVersion":"1.1.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}`)
	n.program("flannel")
	n.program("fake-bridge")
	return n
}

const envText = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.72.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"

func (n node) path(name string) string { return filepath.Join(n.dir, filepath.FromSlash(name)) }

func (n node) write(name, text string) {
	n.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n node) read(name string) string {
	raw, err := os.ReadFile(n.path(name))
	if err != nil {
		return ""
	}
	return string(raw)
}

// program makes this test binary available in bin under a name.
func (n node) program(name string) {
	n.Helper()
	if err := os.MkdirAll(n.path("bin"), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := addProgram(n.path("bin"), name); err != nil {
		n.Fatal(err)
	}
}

func addProgram(dir, name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if runtime.GOOS == "windows" { // which cannot delete a link to a running program
		program, err := os.ReadFile(self)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name+".exe"), program, 0o755)
	}
	return os.Symlink(self, filepath.Join(dir, name))
}

// takeCalls returns the calls of the delegate since the last takeCalls, one a line.
func (n node) takeCalls() string {
	text := n.read("bin/calls")
	_ = os.Remove(n.path("bin/calls")) // it may not exist
	return text
}

// output is the result of a command of the plugin.
type output struct {
	stdout, stderr string
	err            *types.Error // nil if it succeeded
}

func (n node) run(command, id, ifName string, more ...string) output {
	n.Helper()
	return n.start(command, id, ifName, more...)()
}

// start starts a command and returns a function that waits for it.
func (n node) start(command, id, ifName string, more ...string) func() output {
	n.Helper()
	cmd := n.command(command, id, ifName, more...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		n.Fatal(err)
	}
	return func() output {
		n.Helper()
		failed := cmd.Wait()
		s := output{stdout: stdout.String(), stderr: stderr.String()}
		if failed != nil {
			s.err = &types.Error{}
			if err := json.Unmarshal(stdout.Bytes(), s.err); err != nil {
				n.Fatalf("%s: %v: %s%s", command, failed, s.stdout, s.stderr)
			}
		}
		return s
	}
}

func (n node) command(command, id, ifName string, more ...string) *exec.Cmd {
	n.Helper()
	conf, err := json.Marshal(n.conf)
	if err != nil {
		n.Fatal(err)
	}
	program := n.path("bin/flannel")
	if runtime.GOOS == "windows" {
		program += ".exe"
	}
	cmd := exec.Command(program)
	cmd.Stdin = bytes.NewReader(conf)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_CONTAINERID="+id, "CNI_IFNAME="+ifName, "CNI_NETNS=none", "CNI_PATH="+n.path("bin"))
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // otherwise each process sleeps for a second when it exits
	cmd.Env = append(cmd.Env, more...)
	return cmd
}

// saved returns the names of the saved files.
func (n node) saved() (names []string) {
	files, err := os.ReadDir(n.path("data"))
	if err != nil && !os.IsNotExist(err) {
		n.Fatal(err)
	}
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}
