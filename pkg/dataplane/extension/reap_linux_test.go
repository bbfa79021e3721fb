package extension

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"flannel/internal/test/eventually"
)

// What a command has started, and becomes a child of this process, as in a container whose process 1 flanneld is, does
// not stay as a zombie: neither if it is killed with the command, nor if it ends long after the command.
func TestNoZombies(t *testing.T) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		role   string // of the command; its child has the role hang
		killed bool
	}{"killed": {"record", true}, "left": {"leave", false}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			started := listen(t, dir)
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			line := self(t, c.role) + " " + dir + " add"
			if err := os.WriteFile(filepath.Join(dir, "hang-10.5.2.0-24"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error)
			go func() {
				_, err := run(ctx, command{line: line, env: []string{"SUBNET=10.5.2.0/24"}}, marksOf(dir))
				ended <- err
			}()
			child := <-started
			if c.killed {
				kill()
			}
			if err := <-ended; (err != nil) != c.killed {
				t.Fatal(err)
			}
			if !c.killed {
				if !runs(t, child) {
					t.Fatal("what the command has left does not run")
				}
				child.Close() // which ends it
			} else {
				mustEnd(t, child)
			}
			eventually.True(t, "this process has no child", func() bool {
				// Nothing is reaped here. Zombies are children, too.
				return errors.Is(unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD)
			})
		})
	}
}
