package extension

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flannel/internal/test/eventually"
	"flannel/internal/test/logtest"
	"flannel/pkg/dataplane"
)

// marksOf are those that New makes for a directory.
func marksOf(dir string) *marks {
	return &marks{path: filepath.Join(dir, ".command-."), log: slog.New(slog.DiscardHandler)}
}

// A command that runs when flanneld is killed ends, with the process that it started, before the next flanneld runs
// others. One that has succeeded may leave a process.
func TestFormerCommands(t *testing.T) {
	n := newNode(t)
	hangs := func(role string) (child net.Conn, daemon *exec.Cmd) {
		dir := t.TempDir()
		started := listen(t, dir)
		words := strings.Fields(self(t, "run") + " " + n.dir + " " + self(t, role) + " " + dir + " x")
		daemon = exec.Command(words[0], words[1:]...)
		daemon.Env = append(os.Environ(), "SUBNET=10.5.9.0/24")
		daemon.Stderr = os.Stderr
		if err := os.WriteFile(filepath.Join(dir, "hang-10.5.9.0-24"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := daemon.Start(); err != nil {
			t.Fatal(err)
		}
		select {
		case child = <-started:
		case <-time.After(patience):
			t.Fatal("the command does not run")
		}
		return child, daemon
	}
	child, daemon := hangs("record")
	stays, left := hangs("leave")
	if err := left.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()
	n.mustPass(peerPaths(2, "")...)
	mustEnd(t, child)
	if files, err := filepath.Glob(marksOf(n.dir).path + "*"); err != nil || len(files) > 0 {
		t.Errorf("left are %q, %v", files, err)
	}
	if !runs(t, stays) {
		t.Error("the process that a command had left when it succeeded has ended")
	}
}

// PostStartup runs again for another subnet or address of the node, and no other command does.
func TestNodeChanges(t *testing.T) {
	n := newNode(t)
	n.mustPass(peerPaths(2, "")...)
	n.recorded()
	pre := n.pre.have
	n.commands.V4 = end("10.5.7.0/24", "192.168.0.1")
	n.mustPass(peerPaths(2, "")...)
	n.expect(`post 10.5.7.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::1 "" ["10.5.0.0/16"]`)
	n.commands.V6 = end("fd05:0:0:1::/64", "fd00::7")
	n.mustPass(peerPaths(2, "")...)
	n.expect(`post 10.5.7.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::7 "" ["10.5.0.0/16"]`)
	n.mustPass(peerPaths(2, "")...)
	n.expect()
	if n.pre.have != pre {
		t.Error("PreStartup ran again")
	}

	// Commands of peers that hang have all slots.
	var paths []*dataplane.Path
	for i := 10; i < 10+atOnce; i++ {
		paths = append(paths, peerPaths(i, "")...)
		n.tell(fmt.Sprintf("stall-10.5.%d.0-24", i), true)
	}
	ran := func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.post.have == n.post.want
	}
	for again := false; !again || !ran(); {
		if stalled, _ := filepath.Glob(filepath.Join(n.dir, "stalled.*")); len(stalled) == atOnce {
			again, n.commands.V4 = true, end("10.5.8.0/24", "192.168.0.1")
		}
		links, _ := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
		_, _ = n.Apply(t.Context(), links, dataplane.State{Networks: []netip.Prefix{v4Network}, Paths: paths}) // waits for the peers
	}
	if !slices.Contains(n.recorded(), `post 10.5.8.0/24 192.168.0.1 fd05:0:0:1::/64 fd00::7 "" ["10.5.0.0/16"]`) {
		t.Error("PostStartup did not run for the last change")
	}
}

func TestStartFails(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		line string
		want func(error) bool
	}{
		{self(t, "much"), func(err error) bool { return logtest.Names(err.Error(), "2048") }},
		{filepath.Join(n.dir, "missing"), func(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, exec.ErrNotFound) }},
	} {
		n.commands.PreStartup = c.line
		_, err := n.pass(peerPaths(2, "")...)
		var failed *commandError
		if !errors.As(err, &failed) || failed.Key != "PreStartupCommand" || !c.want(err) {
			t.Errorf("%s: %v", c.line, err)
		}
	}
	n.commands.PreStartup = ""
	n.tell("fail-10.5.1.0-24", true)
	_, err := n.pass(peerPaths(2, "")...)
	var failed *commandError
	if !errors.As(err, &failed) || failed.Key != "PostStartupCommand" || !strings.Contains(failed.Output, "PID") {
		t.Errorf("%v", err)
	}
	for _, line := range n.recorded() {
		if line != post {
			t.Errorf("ran %s before PostStartup had succeeded", line)
		}
	}
	n.tell("fail-10.5.1.0-24", false)
	for err != nil {
		<-n.Changes()
		_, err = n.pass(peerPaths(2, "")...)
	}
}

// No command runs beside one of a former process, as long as that may yet end. It has the time limit of a command from the
// first attempt to end it, however long flanneld waits for the store before.
func TestFormerCommandsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.former = func(context.Context) bool { return false }
		n.commands.PreStartup = "" // no program runs in the bubble
		ensure := func() error {
			_, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
			return err
		}
		for range 2 { // the first attempt, late, and the last before its limit
			time.Sleep(timeLimit - 1)
			if waits, ok := errors.AsType[*dataplane.WaitError](ensure()); !ok || waits.Cause() != causeFormer {
				t.Fatal(waits)
			}
			if n.pre.want != "" {
				t.Error("PreStartup runs")
			}
		}
		time.Sleep(time.Nanosecond)
		if err := ensure(); err != nil {
			t.Error(err)
		}
	})
}

// Flags of flanneld may be secrets; words are split before values are put in.
func TestEnvironment(t *testing.T) {
	t.Setenv("FLANNELD_ETCD_PASSWORD", "secret")
	t.Setenv("TWO", "a  b")
	out, err := run(t.Context(), command{line: self(t, "print") + ` "$TWO  ${TWO}x" $FLANNELD_ETCD_PASSWORD $NONE $(id)`, env: []string{"TWO=c d"}}, marksOf(t.TempDir()))
	if want := `"c d|c dx"|||$(id)`; err != nil || out != want {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// The failure of a command that is not wanted any more is not that of the wanted one, which does not wait for a retry.
func TestFailureOfFormerCommand(t *testing.T) {
	n := newNode(t)
	n.retry, n.patient = time.Hour, 0
	kill := make(chan context.CancelFunc, 1)
	n.limit = func(ctx context.Context, c command) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		if slices.Contains(c.env, "SUBNET=10.5.1.0/24") {
			kill <- cancel
		}
		return ctx, cancel
	}
	n.tell("stall-10.5.1.0-24", true)
	once := func() bool {
		links, err := n.Ensure(t.Context(), []dataplane.Device{{Name: "x", Kind: n.commands}})
		_, applyErr := n.Apply(t.Context(), links, dataplane.State{Networks: []netip.Prefix{v4Network}})
		stalled, _ := filepath.Glob(filepath.Join(n.dir, "stalled.*"))
		return errors.Join(err, applyErr) != nil && len(stalled) > 0
	}
	eventually.True(t, "PostStartup stalls", once)
	n.commands.V4 = end("10.5.7.0/24", "192.168.0.1")
	if !once() {
		t.Fatal("PostStartup has succeeded")
	}
	(<-kill)()
	n.patient = passPatient
	n.mustPass()
}

// A timer that fires while hurry replaces it leaves the new one in place.
func TestLateTimer(t *testing.T) {
	n := newNode(t)
	late, next := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	u := &unit{timer: next, next: func() *step { t.Error("the pause of the new timer is not over"); return nil }}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.endPause(u, late)
	if u.timer != next {
		t.Error("the new timer is lost")
	}
}
