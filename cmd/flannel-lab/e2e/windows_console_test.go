package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
)

// base is the directory in which the documentation places the programs.
const base = `C:\k`

// console runs flanneld.exe node start on a Windows node, as start.ps1 does.
// Files, HNS, flanneld.exe and its processes are real. kubelet and kube-proxy
// are testdata/component; the console registers the Node.
type console struct {
	t *testing.T
	l *lab.Lab
	n *lab.Node

	// during is called again and again while node start runs, with its output so
	// far. An error ends node start and everything that it has started, as a power
	// failure does.
	during func(output string) error

	output string // of the last run
}

// components builds testdata/component once for all tests.
var components = sync.OnceValues(func() (program string, err error) {
	dir, err := os.MkdirTemp("", "component") // for all tests of the process
	if err != nil {
		return "", err
	}
	program = filepath.Join(dir, "component.exe")
	cmd := exec.Command("go", "build", "-o", program, "./testdata/component")
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build kubelet.exe and kube-proxy.exe: %w: %s", err, out)
	}
	return program, nil
})

// newConsole prepares a node as the quickstart requires it before start.ps1:
// programs, plugins and a kubeconfig, but no Node.
func newConsole(t *testing.T, l *lab.Lab, n *lab.Node) *console {
	t.Helper()
	bin, err := lab.BinDir()
	must(t, err)
	component, err := components()
	must(t, err)
	program, err := os.ReadFile(component)
	must(t, err)
	c := &console{t: t, l: l, n: n}
	must(t, n.Do(func() error {
		cni := c.file(base + `\cni`)
		if err := os.MkdirAll(cni, 0o755); err != nil {
			return err
		}
		for _, name := range []string{"flannel", "win-overlay", "win-bridge", "host-local"} {
			if err := os.Symlink(filepath.Join(bin, "cni", name+".exe"), filepath.Join(cni, name+".exe")); err != nil {
				return err
			}
		}
		for _, name := range []string{"kubelet", "kube-proxy"} {
			if err := os.WriteFile(c.file(base+`\`+name+".exe"), program, 0o755); err != nil {
				return err
			}
		}
		kubeconfig, err := os.ReadFile("/etc/kube-flannel/kubeconfig")
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.file(base+`\config`), kubeconfig, 0o600); err != nil {
			return err
		}
		return os.Symlink(filepath.Join(bin, "..", "dist", "out", "flanneld-windows-amd64.exe"),
			c.file(base+`\flanneld.exe`))
	}))
	must(t, l.Kube.Unregister(t.Context(), n))
	t.Cleanup(func() {
		if t.Failed() {
			text, err := n.ReadFile(c.file(base + `\flanneld.log`))
			t.Logf("the log of flanneld on %s (%v):\n%s", n.Name, err, text)
		}
	})
	return c
}

func (c *console) file(path string) string { return c.n.Windows.File(path) }

// errInterrupted is the error of during that stands for a power failure.
var errInterrupted = errors.New("interrupted")

// start runs flanneld.exe node start and returns an error if its status is not
// 0, or the error of during. A run whose status Wine has lost is repeated.
func (c *console) start(args ...string) error {
	c.t.Helper()
	for {
		mark := len(c.n.Log())
		must(c.t, c.n.StartIn(base+`\flanneld.exe`, append([]string{"node", "start"}, args...)...))
		err := c.follow(mark)
		c.output = c.n.Log()[mark:]
		c.t.Logf("node start %q on %s: %v\n%s", args, c.n.Name, err, c.output)
		if err != nil {
			return err
		}
		code, err := c.n.Wait(c.t.Context())
		switch {
		case err != nil:
			return err
		case code == 0:
			return nil
		case !lab.WineDied(code):
			return fmt.Errorf("node start ended with status %d", code)
		}
	}
}

// follow waits until node start has ended. Meanwhile it does what kubelet would
// do, and calls during.
func (c *console) follow(mark int) (err error) {
	withinOf(c.t, 3*long, "node start has ended", func() error {
		must(c.t, c.register())
		if c.during != nil {
			err = c.during(c.n.Log()[mark:])
		}
		if err == nil && c.n.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	if err != nil {
		c.cutPower()
	}
	return err
}

// cutPower kills everything of the directory of programs, but not Windows.
func (c *console) cutPower() {
	c.t.Helper()
	withinOf(c.t, long, "nothing runs", func() error {
		// Again and again: a process that another one was about to start appears after that one was killed.
		_, err := c.n.Run(c.t.Context(), "sh", "-c", `pkill -9 -f '^C:.k.' || true`)
		must(c.t, err)
		if c.n.Running() {
			must(c.t, c.n.Kill())
		}
		if pids := c.processes(`^C:.k.`); pids != "" {
			return fmt.Errorf("processes %s", pids)
		}
		return nil
	})
	c.forget()
}

// processes returns the IDs of processes whose command line matches a pattern.
func (c *console) processes(pattern string) string {
	c.t.Helper()
	out, err := c.n.Run(c.t.Context(), "sh", "-c", "pgrep -f '"+pattern+"' || true")
	must(c.t, err)
	return strings.TrimSpace(out)
}

// daemonRuns reports whether flanneld runs as a daemon.
func (c *console) daemonRuns() bool {
	c.t.Helper()
	return c.processes(`^C:.k.flanneld.exe.*--ip-masq`) != ""
}

// stop runs flanneld.exe node stop.
func (c *console) stop() {
	c.t.Helper()
	out, err := c.n.RunProgram(c.t.Context(), base+`\flanneld.exe`, "node", "stop")
	must(c.t, err)
	if out.Status != 0 || c.daemonRuns() {
		c.t.Errorf("node stop: %+v; flanneld runs: %t", out, c.daemonRuns())
	}
	c.forget()
}

// forget removes what kubelet and kube-proxy have written.
func (c *console) forget() {
	c.t.Helper()
	_, err := c.n.Run(c.t.Context(), "sh", "-c", "rm -f "+c.file(base)+"/*.args")
	must(c.t, err)
}

// started returns the arguments of a component since it was last stopped.
func (c *console) started(name string) (args []string) {
	c.t.Helper()
	raw, err := c.n.ReadFile(c.file(base + `\` + name + ".exe.args"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must(c.t, err)
	must(c.t, json.Unmarshal(raw, &args))
	return args
}

// runs is started for a component that runs, and writes its arguments when the system
// has started it.
func (c *console) runs(name string) (args []string) {
	c.t.Helper()
	withinOf(c.t, long, name+" has written its arguments", func() error {
		if args = c.started(name); args == nil {
			return errors.New("it has not")
		}
		return nil
	})
	return args
}

// register creates the Node, as kubelet does, if kubelet was started and there
// is no Node.
func (c *console) register() error {
	if c.started("kubelet") == nil {
		return nil
	}
	ctx := c.t.Context()
	_, err := c.l.Kube.Client.CoreV1().Nodes().Get(ctx, c.n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.l.Kube.Register(ctx, c.n)
	}
	return err
}
