package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"flannel/cmd/flannel-lab/machine"
	"flannel/cmd/flannel-lab/windows"
)

// Adapter is the Windows name of a Windows node's adapter on the underlay.
// Linux calls the same device Uplink.
const Adapter = "Ethernet"

// winePrefix is the directory, in a Windows node, of its Wine: drive C: and the
// registry. At hnsAddr the simulated machine answers the programs in Wine.
const (
	winePrefix = "/run/wine"
	hnsAddr    = "127.0.0.1:4000"
)

// Windows is the simulated Windows machine of a node: HNS and the IP stack of
// internal/test/hnstest, which act on the node's network namespace, for programs that
// run in Wine. The machine runs in a process of its own (roleWindows) in the node.
// Remote is the connection to it: its Do makes the machine fail calls, restart HNS,
// or change state behind the daemon's back.
type Windows struct {
	*windows.Remote                  // set by becomeWindows
	run             string           // path of the script that runs Windows programs in Wine
	proc            *machine.Process // the simulated machine
}

// Report returns the current state of the machine.
func (w *Windows) Report() (windows.Report, error) { return w.Do(windows.Order{}) }

// wineRun returns the path of the script that runs Windows programs in Wine.
func (o Options) wineRun() string { return filepath.Join(o.BinDir, "wine", "run") }

// flanneldExe returns the path of the released flanneld.exe.
func (o Options) flanneldExe() string {
	return filepath.Join(o.BinDir, "..", "dist", "out", "flanneld-windows-amd64.exe")
}

// becomeWindows turns a machine that has its uplink into a Windows node, and
// waits until the simulated machine answers.
func (n *Node) becomeWindows(ctx context.Context) error {
	w := &Windows{run: n.lab.opts.wineRun()}
	if err := n.Do(func() error { return prepareWine(filepath.Dir(w.run)) }); err != nil {
		return fmt.Errorf("set up Wine on %s: %w", n.Name, err)
	}
	cmd := machine.InRole(roleWindows) // this program again; it calls windowsMain
	var err error
	if w.proc, err = machine.StartProcess(n.Machine, cmd, "windows.log"); err != nil {
		return err
	}
	_, err = machine.Until(ctx, machine.Longest, func(context.Context) error {
		if !w.proc.Running() {
			return machine.Fatal(fmt.Errorf("the simulated machine of %s ended: %s", n.Name,
				machine.LastLine(w.proc.Log())))
		}
		return n.Do(func() (err error) {
			w.Remote, err = windows.Dial(hnsAddr)
			return err
		})
	})
	n.Windows = w
	return err
}

// prepareWine runs in a node. It gives the node a C: of its own, and links
// C:\run, C:\etc and C:\var\lib to the node's /run, /etc and /var/lib. Programs
// use both \run and /run, and Wine resolves the former below C: and the latter
// below the Unix root.
func prepareWine(dir string) error {
	// The wineserver has its socket in this directory. It is on a tmpfs, because
	// otherwise the socket would stay in the host's /tmp when the node is powered off.
	sockets := fmt.Sprintf("/tmp/.wine-%d", os.Getuid())
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", sockets, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount %s: %w", sockets, err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(dir, "prefix"), winePrefix).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the Wine prefix: %w: %s", err, out)
	}
	drive := filepath.Join(winePrefix, "drive_c")
	if err := os.Mkdir(filepath.Join(drive, "var"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"run", "etc", "var/lib"} {
		if err := os.Symlink("/"+name, filepath.Join(drive, name)); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(Uplink)
	if err != nil {
		return err
	}
	return netlink.LinkSetAlias(link, Adapter) // the simulated machine takes the alias as the adapter's name
}

// program returns the Linux command that runs a Windows program.
func (w *Windows) program(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(w.run, append([]string{path}, args...)...)
	cmd.Dir = filepath.Join(winePrefix, "drive_c")
	cmd.Env = []string{"WINEPREFIX=" + winePrefix, "FLANNEL_HNS=" + hnsAddr}
	return cmd
}

// File returns the path in the node, for Linux, of a file on C:, such as
// `C:\k\flanneld.exe`.
func (w *Windows) File(path string) string {
	below := strings.TrimPrefix(strings.TrimPrefix(path, "C:"), "c:")
	return filepath.Join(winePrefix, "drive_c", strings.ReplaceAll(below, `\`, "/"))
}

// Outcome is the output of a program and its exit status (128 plus the signal
// number if a signal ended it).
type Outcome struct {
	Stdout, Stderr string
	Status         int
}

// WineDied reports whether a status means that a signal ended Wine (see
// machine.Status), so that the status of the program itself is not known. On a busy
// machine Wine kills a program that takes more than half a second to exit, and
// sometimes crashes on exit.
func WineDied(status int) bool { return status > 128 }

// RunProgram runs a Windows program until it ends, with the node's name and Env
// in its environment. If its status was lost, or Wine could not start it
// (status 1 without output), RunProgram runs it again, up to three times in
// all, so the program must be repeatable. err is not nil if the program could
// not be run, or ctx ended.
func (n *Node) RunProgram(ctx context.Context, program string, args ...string) (out Outcome, err error) {
	for range 3 {
		cmd := n.Windows.program(program, args...)
		cmd.Env = append(append(cmd.Env, "NODE_NAME="+n.Name), n.Env...)
		out, err = n.runToEnd(ctx, cmd)
		neverStarted := out == Outcome{Status: 1} // no output either
		if err != nil || !WineDied(out.Status) && !neverStarted {
			break
		}
	}
	return out, err
}

// runToEnd runs a command in the node until it ends. It kills the command when
// ctx ends.
func (n *Node) runToEnd(ctx context.Context, cmd *exec.Cmd) (Outcome, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Namespaces.Start(cmd); err != nil {
		return Outcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	_ = cmd.Wait() // the result is in ProcessState
	return Outcome{stdout.String(), stderr.String(),
		machine.Status(cmd.ProcessState.Sys().(syscall.WaitStatus))}, ctx.Err()
}

func (w *Windows) close() error {
	if w.Remote == nil {
		return nil
	}
	return w.Remote.Close()
}

// roleWindows is the role of the process that simulates the machine, in a
// Windows node.
const roleWindows = "windows"

// windowsMain runs the simulated machine. It returns only on an error.
func windowsMain() error {
	m, err := windows.New()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", hnsAddr)
	if err != nil {
		return errors.Join(err, m.Close())
	}
	return fmt.Errorf("serve the machine: %w", windows.Serve(l, m))
}
