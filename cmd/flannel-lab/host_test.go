package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"flannel/cmd/flannel-lab/cluster"
	"flannel/cmd/flannel-lab/lab"
	"flannel/cmd/flannel-lab/machine"
	"flannel/internal/test/eventually"
	"flannel/internal/test/nstest"
)

// These tests examine a lab from outside. They run the test binary as another
// command, which this variable tells to run a lab. Its value is the path of a
// substitute for flanneld.
const asLab = "FLANNEL_LAB_TEST_STANDIN"

// asCommand makes the test binary behave like flannel-lab.
const asCommand = "FLANNEL_LAB_TEST_COMMAND"

func TestMain(m *testing.M) {
	lab.Continue()
	cluster.Continue()
	if os.Getenv(asCommand) != "" {
		os.Exit(run(os.Args[1:]))
	}
	if standIn := os.Getenv(asLab); standIn != "" {
		lab.Init()
		if err := holdLab(context.Background(), standIn); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdLab runs a lab with everything that a lab can contain, until stdin is closed.
func holdLab(ctx context.Context, standIn string) error {
	l, err := lab.New(ctx, lab.Options{Nodes: 3, Windows: 1, Flanneld: standIn})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.SetConfig(ctx, l.Config(`{"Type":"vxlan","VNI":4096,"Port":4789}`)); err != nil {
		return err
	}
	for _, n := range l.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
		_, err := machine.Until(ctx, time.Minute, func(ctx context.Context) error {
			if n.Windows != nil { // written by the real flanneld.exe
				_, err := n.SubnetEnv()
				return err
			}
			_, err := n.AddPod(ctx, "pod")
			return err
		})
		if err != nil {
			return err
		}
	}
	fmt.Println("up")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// standIn creates what a daemon creates: children, entries in the kernel, sysctls
// and files.
const standIn = `#!/bin/sh
ip link add flannel.1 type vxlan id 1 dstport 8472 dev eth0 && ip link set flannel.1 up
ip route add 10.5.99.0/24 via 10.5.99.0 dev flannel.1 onlink
iptables -t nat -A POSTROUTING -j MASQUERADE
nft add table ip flannel-ipv4
echo 1 >/proc/sys/net/ipv4/ip_forward
printf 'FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n' >/run/flannel/subnet.env
sleep 1000 & trap '' TERM
wait
`

func labCommand(t *testing.T) *exec.Cmd {
	t.Helper()
	path := filepath.Join(t.TempDir(), "flanneld")
	if err := os.WriteFile(path, []byte(standIn), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asLab+"="+path)
	return cmd
}

// TestNothingIsLeft runs a lab with nodes, etcd and substitutes for daemons,
// ends it in different ways, and searches for processes and namespaces that it
// left, and for changes of the network of the host. The host is one of the test's
// own, made of namespaces: others may change the network of the machine meanwhile.
func TestNothingIsLeft(t *testing.T) { nstest.Run(t, testNothingIsLeft) }

func testNothingIsLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, end := range []struct {
		name   string
		victim func(outer int, below []process) int // PID to kill; 0: the lab ends by itself
	}{
		{"the lab ends by itself", func(int, []process) int { return 0 }},
		{"its caller is killed", func(outer int, _ []process) int { return outer }},
		{"its process 1 is killed", func(_ int, below []process) int { return below[0].pid }},
		{"the program is killed", func(_ int, below []process) int { return below[1].pid }},
	} {
		t.Run(end.name, func(t *testing.T) {
			before := hostState(t)
			cmd := labCommand(t)
			stdin, stdout := startWithPipes(t, cmd)
			defer cmd.Process.Kill()
			if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "up\n" {
				t.Fatalf("the lab did not start: %q %v", line, err)
			}
			below := descendants(t, cmd.Process.Pid)
			spaces, closeAll := openNamespaces(t, below)
			defer closeAll()
			t.Logf("%d processes, %d namespaces", len(below), len(spaces))
			if len(below) < 6 || len(spaces) < 10 { // process 1, the program, infra, etcd, two nodes, their daemons
				t.Fatalf("these are not the processes of a lab: %v", below)
			}
			wine := wineServers(t, below)
			if len(wine) == 0 || !slices.ContainsFunc(below, func(p process) bool { return p.name == "etcd" }) {
				t.Fatalf("no wineserver or no etcd below the lab: %v", below)
			}
			if pid := end.victim(cmd.Process.Pid, below); pid != 0 {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			} else if err := stdin.Close(); err != nil {
				t.Fatal(err)
			}
			untilGone(t, below, spaces)
			closeAll()
			_ = cmd.Wait() // its status is that of the killed process
			for _, name := range wine {
				if left, _ := filepath.Glob("/tmp/.wine-*/" + name); len(left) > 0 {
					t.Errorf("the lab's Wine left %s on the host", left)
				}
			}
			after := hostState(t)
			for name, text := range before {
				if after[name] != text {
					t.Errorf("%s of the host changed\nfrom %s\nto   %s", name, text, after[name])
				}
			}
		})
	}
}

func untilGone(t *testing.T, below []process, spaces map[string]bool) {
	t.Helper()
	eventually.Nil(t, "nothing is left of it", func() error {
		if left := remains(t, below, spaces); len(left) > 0 {
			return fmt.Errorf("there are %v", left)
		}
		return nil
	})
}

// startWithPipes starts cmd, and returns the other ends of its stdin and stdout.
// Stdout is at its end when the last process that has it open has ended.
func startWithPipes(t *testing.T, cmd *exec.Cmd) (io.Closer, *os.File) {
	t.Helper()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return stdin, r
}
