package cniinstall

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// killed makes the test binary a process that installs without end: two sources by turns.
const killed = "CNIINSTALL_DIR"

func TestMain(m *testing.M) {
	dir := os.Getenv(killed)
	if dir == "" {
		os.Exit(m.Run())
	}
	for i := 0; ; i++ {
		f := Files{ConfFrom: dir + "/conf" + []string{"1", "2"}[i%2], ConfTo: dir + "/net.d/10-flannel.conflist"}
		if _, err := f.Install(slog.New(slog.DiscardHandler)); err != nil {
			os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
	}
}

// Whenever the process is killed, the file is whole, and the mesh's plugin is in it.
func TestKilledAtAnyTime(t *testing.T) {
	n := newNode(t)
	n.write(n.path("conf1"), source)
	n.write(n.path("conf2"), strings.Replace(source, "true", "false", 1))
	n.write(n.ConfTo, istio)
	self, err := os.Executable()
	n.must(err)
	for i := range 30 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), killed+"="+n.dir)
		var problems strings.Builder
		cmd.Stderr = &problems
		n.must(cmd.Start())
		before, _ := os.Stat(n.ConfTo)
		n.until("written", func() bool { after, err := os.Stat(n.ConfTo); return err != nil || !os.SameFile(before, after) })
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		n.must(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		if problems.Len() > 0 || n.types() != "flannel portmap istio-cni" {
			t.Fatalf("%s; %s:\n%s", &problems, n.types(), n.read(n.ConfTo))
		}
	}
}
