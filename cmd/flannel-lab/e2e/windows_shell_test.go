package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/powershell"
	"flannel/dist/windows/check"
	"flannel/internal/test/nettest"
)

// base is the directory in which the documentation places the programs.
const base = `C:\k`

// console runs start.ps1 on a Windows node with the interpreter of package
// powershell. Files, HNS, flanneld.exe and its commands are real. PowerShell,
// services, and the processes kubelet and kube-proxy are simulated.
type console struct {
	t       *testing.T
	l       *lab.Lab
	n       *lab.Node
	scripts []check.Script // start.ps1, flannel.psm1

	// before is called with the arguments of each flanneld.exe before it runs,
	// including the daemon.
	before func(args []string) error

	shell   *powershell.Shell // of the last run
	output  string            // of the last run
	daemon  []string          // arguments of the running flanneld
	started map[string][]string
}

// newConsole prepares a node as the quickstart requires it before start.ps1:
// programs, plugins and a kubeconfig, but no Node.
func newConsole(t *testing.T, l *lab.Lab, n *lab.Node) *console {
	t.Helper()
	bin, err := lab.BinDir()
	must(t, err)
	scripts, err := check.Parse(nettest.Tool(t, "powershell/parse.mjs"), filepath.Join(bin, "..", "dist", "windows",
		"start.ps1"), filepath.Join(bin, "..", "dist", "windows", "flannel.psm1"))
	must(t, err)
	c := &console{t: t, l: l, n: n, scripts: scripts, started: map[string][]string{}}
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
			if err := os.WriteFile(c.file(base+`\`+name+".exe"), nil, 0o755); err != nil {
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
	return c
}

func (c *console) file(path string) string { return c.n.Windows.File(path) }

// start runs start.ps1 and returns its error.
func (c *console) start(parameters map[string]any) error {
	c.t.Helper()
	c.output = ""
	c.shell = powershell.NewShell(c.scripts[1:]...)
	c.shell.Set("env:COMPUTERNAME", strings.ToUpper(c.n.Name))
	c.shell.Set("PSScriptRoot", base)
	c.shell.Commands = map[string]func([]any) (any, error){
		"Invoke-Program": c.run, "Start-Component": c.startComponent, "Test-Component": c.testComponent,
		"Stop-Component": nothing,
		"Get-Service":    nothing, "Assert-Administrator": nothing, "Write-Step": c.write, "Join-Arguments": joined,
		"Test-Path": c.testPath, "New-Item": c.newItem, "Write-Text": c.writeText, "Read-Settings": c.readSettings,
		"Get-FullPath": asGiven,
	}
	err := c.shell.Run(c.scripts[0], parameters)
	c.t.Logf("start.ps1 on %s (%v):\n%s", c.n.Name, err, c.output)
	return err
}

func nothing([]any) (any, error)      { return nil, nil }
func asGiven(args []any) (any, error) { return args[0], nil }

// joined returns its arguments as one text.
func joined(args []any) (any, error) { return strings.Join(powershell.Texts(args...), " "), nil }

func (c *console) write(args []any) (any, error) {
	c.output += strings.Join(powershell.Texts(args...), " ") + "\n"
	return nil, nil
}

// run runs a program. Its stderr goes to the console. Of kube-proxy, only
// --version is supported.
func (c *console) run(args []any) (any, error) {
	words := powershell.Texts(args...)
	switch {
	case words[0] == base+`\kube-proxy.exe` && words[1] == "--version":
		c.shell.Set("LASTEXITCODE", 0)
		return "Kubernetes v1.32.1", nil
	case words[0] != base+`\flanneld.exe`:
		return nil, fmt.Errorf("no such program: %s", words[0])
	}
	if c.before != nil {
		if err := c.before(words[1:]); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*long)
	defer cancel()
	did, err := c.n.RunProgram(ctx, words[0], words[1:]...)
	c.output += fmt.Sprintf("> flanneld.exe %q ended with %d\n%s%s", words[1:], did.Status, did.Stdout, did.Stderr)
	c.shell.Set("LASTEXITCODE", did.Status)
	var lines []any
	for line := range strings.Lines(did.Stdout) {
		lines = append(lines, strings.TrimRight(line, "\r\n"))
	}
	return lines, err
}

// startComponent does what the function of the same name does on machines
// without services: it stops a process that runs with other arguments, and
// starts one.
func (c *console) startComponent(args []any) (any, error) {
	name, words := powershell.Texts(args[1])[0], powershell.Texts(args[3])
	c.started[name] = words
	switch name {
	case "kubelet":
		return nil, c.register()
	case "kube-proxy":
		return nil, nil
	}
	if c.before != nil {
		if err := c.before(words); err != nil {
			return nil, err
		}
	}
	if c.n.Running() {
		if slices.Equal(words, c.daemon) {
			return nil, nil
		}
		c.stop()
	}
	c.daemon = words
	return nil, c.n.StartIn(powershell.Texts(args[2])[0], words...)
}

// stop ends flanneld with Ctrl-C, which stands for stop.ps1.
func (c *console) stop() {
	c.t.Helper()
	if code, err := c.n.Stop(c.t.Context()); err != nil || !exitedCleanly(code) {
		c.t.Errorf("%s: Ctrl-C ended flanneld.exe with %d, %v", c.n.Name, code, err)
	}
}

// register creates the Node, unless it exists, as kubelet does.
func (c *console) register() error {
	ctx := c.t.Context()
	_, err := c.l.Kube.Client.CoreV1().Nodes().Get(ctx, c.n.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.l.Kube.Register(ctx, c.n)
	}
	return err
}

func (c *console) testComponent(args []any) (any, error) { return c.n.Running(), nil }

func (c *console) testPath(args []any) (there any, err error) {
	words := powershell.Texts(args...) // -LiteralPath PATH
	err = c.n.Do(func() error {
		_, err := os.Stat(c.file(words[1]))
		there = err == nil
		return nil
	})
	return there, err
}

func (c *console) newItem(args []any) (any, error) {
	words := powershell.Texts(args...) // -ItemType Directory -Force -Path PATH
	return nil, c.n.Do(func() error { return os.MkdirAll(c.file(words[len(words)-1]), 0o755) })
}

// writeText writes a file and reports whether its contents changed.
func (c *console) writeText(args []any) (changed any, err error) {
	words := powershell.Texts(args...)
	err = c.n.Do(func() error {
		path := c.file(words[0])
		old, err := os.ReadFile(path)
		if changed = err != nil || string(old) != words[1]; changed == false {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(words[1]), 0o644)
	})
	return changed, err
}

// readSettings returns the JSON object in a file; an empty one if there is no
// file.
func (c *console) readSettings(args []any) (any, error) {
	text, err := c.n.ReadFile(c.file(powershell.Texts(args...)[0]))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]any{}, nil
	} else if err != nil {
		return nil, err
	}
	return powershell.FromJSON(string(text))
}
