package linux

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"flannel/pkg/reconcile"
)

// userspaceWireGuard is a program that implements WireGuard with a TUN device.
const userspaceWireGuard = "wireguard-go"

// errNoWireGuard is the error of a machine that has WireGuard neither in its kernel nor
// as a program.
var errNoWireGuard = &noModuleError{Module: "wireguard", text: "the kernel has no WireGuard: load its module with modprobe wireguard on the host (Linux 5.6 and later have it), " +
	"install the package with the kernel's modules if it does not find it, or install wireguard-go, which does the same in a process and is slower"}

// startUserspace starts wireguard-go for a device, unless its last start failed just now: a start that fails makes and
// deletes a device, of which the kernel notifies, so that another pass follows at once.
func (s *wgStore) startUserspace(device string) error {
	b := s.starts[device]
	if b == nil {
		b = &reconcile.Backoff{First: time.Second, Last: maxStartPause}
		if s.starts == nil {
			s.starts = map[string]*reconcile.Backoff{}
		}
		s.starts[device] = b
	}
	return b.Do(func() error { return startWireGuardGo(device) })
}

// startWireGuardGo starts wireguard-go for a device. The program returns when the device
// exists, and leaves a process behind that is in a session of its own and does not end
// with flanneld. It ends when the device is deleted. It inherits neither the environment
// nor files, so no secret of flanneld is visible there; it gets its keys by its socket.
func startWireGuardGo(device string) error {
	path, err := exec.LookPath(userspaceWireGuard)
	if err != nil {
		return errNoWireGuard
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, device)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s (it needs /dev/net/tun, and to write to /run/wireguard)", path, device, err, lastLines(out.String(), 1))
	}
	return nil
}

// maxStartPause is the longest pause between two tries to start wireguard-go, or charon. Failed passes, which come every
// 15 s at least, have a longer one, so that each of these finds that a try is due.
const maxStartPause = 10 * time.Second

// startTimeout bounds the start, for which the loop waits. It usually takes some ten milliseconds.
const startTimeout = 15 * time.Second
