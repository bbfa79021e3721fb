package install

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// killed is the variable that makes the test binary a process that installs two
// sources by turns until it is killed.
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

// Readers always see a whole file with the mesh's plugin, while it is written and
// whenever the writing process is killed.
func TestKilledAtAnyTime(t *testing.T) {
	n := newNode(t)
	n.write(n.path("conf1"), source) // one of the two always differs from what is there
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
		before := n.read(n.ConfTo)
		n.until("written", func() bool { return n.read(n.ConfTo) != before })
		for start := time.Now(); time.Since(start) < time.Duration(i)*time.Millisecond; {
			if n.types() != "flannel portmap istio-cni" {
				t.Fatalf("a reader sees %q", n.read(n.ConfTo))
			}
		}
		n.must(cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
		if problems.Len() > 0 || n.types() != "flannel portmap istio-cni" {
			t.Fatalf("%s; %s:\n%s", &problems, n.types(), n.read(n.ConfTo))
		}
	}
}
