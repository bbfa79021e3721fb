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

// Adapter is the name of a Windows node's adapter on the underlay, as Windows has it. (Linux calls it Uplink.)
const Adapter = "Ethernet"

// Where a Windows node has its part of Wine: C: with its own registry, and the simulated machine.
const (
	winePrefix = "/run/wine"
	hnsAddr    = "127.0.0.1:4000"
)

// Windows is a simulated Windows machine that a node's namespaces play: HNS and the IP stack of pkg/hns/hnstest, for
// programs that run in Wine. Do gives it orders, by which it fails, forgets, or is another hand's.
type Windows struct {
	*windows.Remote
	run  string // what runs programs for Windows
	proc *machine.Process
}

// Now is how the machine stands.
func (w *Windows) Now() (windows.Report, error) { return w.Do(windows.Order{}) }

// wineRun, and flanneld.exe as it is shipped.
func (o Options) wineRun() string { return filepath.Join(o.BinDir, "wine", "run") }

func (o Options) flanneldExe() string {
	return filepath.Join(o.BinDir, "..", "dist", "out", "flanneld-windows-amd64.exe")
}

// becomeWindows makes a machine with an uplink one that is Windows.
func (n *Node) becomeWindows(ctx context.Context) error {
	w := &Windows{run: n.lab.opts.wineRun()}
	if err := n.Do(func() error { return prepareWine(filepath.Dir(w.run)) }); err != nil {
		return fmt.Errorf("set up Wine on %s: %w", n.Name, err)
	}
	cmd := machine.InRole(roleWindows)
	var err error
	if w.proc, err = machine.StartProcess(n.Machine, cmd, "windows.log"); err != nil {
		return err
	}
	_, err = machine.Until(ctx, machine.Longest, func(context.Context) error {
		if !w.proc.Running() {
			return machine.Fatal(fmt.Errorf("the simulated machine of %s ended: %s", n.Name, machine.LastLine(w.proc.Log())))
		}
		return n.Do(func() (err error) {
			w.Remote, err = windows.Dial(hnsAddr)
			return err
		})
	})
	n.Windows = w
	return err
}

// prepareWine runs in a node: a C: of its own, on which C:\run is the node's /run, and so on: Wine takes \run for the
// one and /run for the other, and programs use both.
func prepareWine(dir string) error {
	// Here a wineserver has its socket. It is not to be left in the machine's own /tmp when the node is switched off.
	sockets := fmt.Sprintf("/tmp/.wine-%d", os.Getuid())
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", sockets, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700"); err != nil {
		return fmt.Errorf("mount %s: %w", sockets, err)
	}
	if out, err := exec.Command("cp", "-a", filepath.Join(dir, "prefix"), winePrefix).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the prefix: %w: %s", err, out)
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
	return netlink.LinkSetAlias(link, Adapter)
}

// program is a program for Windows as a command for Linux.
func (w *Windows) program(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(w.run, append([]string{path}, args...)...)
	cmd.Dir = filepath.Join(winePrefix, "drive_c")
	cmd.Env = []string{"WINEPREFIX=" + winePrefix, "FLANNEL_HNS=" + hnsAddr}
	return cmd
}

// File is where a file of C: is for Linux, in the node.
func (w *Windows) File(path string) string {
	below := strings.TrimPrefix(strings.TrimPrefix(path, "C:"), "c:")
	return filepath.Join(winePrefix, "drive_c", strings.ReplaceAll(below, `\`, "/"))
}

// Outcome is what a program wrote, and its exit status, as a shell would tell it.
type Outcome struct {
	Stdout, Stderr string
	Status         int
}

// WineDied tells whether a status says only that Wine ended by a signal, so that the program's own is not known: it kills
// one that has ended and is not gone half a second later, and has crashed at an end, on a busy machine.
func WineDied(status int) bool { return status > 128 }

// RunProgram runs a program for Windows to its end, with the node's name and Env. One whose status was lost, or that Wine
// could not start (then it fails without a word), is run again, so it must be one that can be. Its error is for what
// cannot be run.
func (n *Node) RunProgram(ctx context.Context, program string, args ...string) (did Outcome, err error) {
	for range 3 {
		cmd := n.Windows.program(program, args...)
		cmd.Env = append(append(cmd.Env, "NODE_NAME="+n.Name), n.Env...)
		if did, err = n.toEnd(ctx, cmd); err != nil || !WineDied(did.Status) && did != (Outcome{Status: 1}) {
			break
		}
	}
	return did, err
}

func (n *Node) toEnd(ctx context.Context, cmd *exec.Cmd) (Outcome, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := n.Namespaces.Start(cmd); err != nil {
		return Outcome{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	_ = cmd.Wait() // its outcome is in ProcessState
	return Outcome{stdout.String(), stderr.String(), machine.Status(cmd.ProcessState.Sys().(syscall.WaitStatus))}, ctx.Err()
}

func (w *Windows) close() error {
	if w.Remote == nil {
		return nil
	}
	return w.Remote.Close()
}

// roleWindows is what makes a machine a Windows one.
const roleWindows = "windows"

// windowsMain is the simulated machine, in a node.
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
