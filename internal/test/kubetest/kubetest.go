// Package kubetest runs a real kube-apiserver for a test, with the controller
// that assigns podCIDRs to nodes and with our manifest applied. The test can
// kill, pause and restart it. It ends with the test or goes to the next one (Main),
// and listens on a loopback address only.
package kubetest

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"flannel/internal/test/eventually"
	"flannel/internal/test/kubetest/cluster"
	"flannel/internal/test/nettest"
)

// Server is a kube-apiserver whose address and data survive restarts. The
// embedded Cluster has the Client and Config of the administrator. The methods fail the test
// when something goes wrong, and belong to its goroutine.
type Server struct {
	*cluster.Cluster
	t    testing.TB       // the test that has the server now
	dir  string           // data
	addr string           // host:port
	args []string         // further arguments of bin/kube
	bare bool             // do not apply our manifest
	proc *nettest.Process // the kube-apiserver that was started last

	shared bool      // it goes to another test afterwards: see shared.go
	fresh  inventory // the objects of a shared server before its first test
}

// Option changes how Start runs the server.
type Option func(*Server)

// PodCIDRs makes the controller assign every node a subnet of each of these
// networks (IPv4 first), with 24 and 64 bits. Without this option the test must
// set podCIDRs itself.
func PodCIDRs(cluster ...string) Option {
	return func(s *Server) { s.args = append(s.args, "-cluster-cidr="+strings.Join(cluster, ",")) }
}

// Audit turns on the log that AuditLog returns.
func Audit() Option { return func(s *Server) { s.args = append(s.args, "-audit") } }

// Bare starts the server without our manifest.
func Bare() Option { return func(s *Server) { s.bare = true } }

// Start runs a server, waits until it is ready, and applies our manifest. The server ends
// with the test. If the TestMain of the package calls Main, Start may return the server of a
// test that has ended, which contains nothing of that test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t, addr: nettest.Address(t)}
	for _, o := range opts {
		o(s)
	}
	// Only servers with the same arguments can be shared: those without options that add some.
	if s.shared = servers.dir != "" && len(s.args) == 0; !s.shared {
		s.dir = t.TempDir()
		s.start()
		return s
	}
	if former := servers.take(s.bare); former != nil {
		former.use(t)
		return former
	}
	s.use(t) // first, so that the server is removed if the start fails
	var err error
	s.dir, err = os.MkdirTemp(servers.dir, "")
	s.check("create its directory", err)
	s.start()
	eventually.Nil(t, "kube-apiserver has made its own objects", func() error {
		if s.fresh, err = s.inventory(s.context()); err != nil {
			return err
		}
		return s.fresh.lacks()
	})
	return s
}

// start runs a new server.
func (s *Server) start() {
	s.t.Helper()
	s.Start()
	config, err := clientcmd.BuildConfigFromFlags("", s.File("admin.kubeconfig"))
	s.check("read kubeconfig", err)
	config.QPS, config.Burst = -1, 0 // -1: no limit of requests
	s.Cluster, err = cluster.Open(config)
	s.check("create clients", err)
	if !s.bare {
		s.ApplyManifest(filepath.Join(nettest.Root(s.t), "Documentation", "kube-flannel.yml"))
	}
}

// check fails the test if err is not nil.
func (s *Server) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("kube-apiserver: %s: %v\n%s", what, err, s.log())
	}
}

// log returns the end of the server's output.
func (s *Server) log() string {
	if s.proc == nil {
		return ""
	}
	return s.proc.Log()
}

// context returns a context with a timeout for requests of the helper itself.
func (s *Server) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	s.t.Cleanup(cancel)
	return ctx
}

// timeout is for each operation of the helper. A start takes seconds, or
// minutes on a busy machine.
const timeout = 10 * time.Minute

// starts limits the number of servers that start at the same time. Starting is
// CPU-bound: eight servers at once take longer than two groups of four.
var starts = make(chan struct{}, max(2, runtime.NumCPU()))

// Start starts the server again after Stop or Kill, with the same data and
// address, and waits until it is ready.
func (s *Server) Start() {
	s.t.Helper()
	starts <- struct{}{}
	defer func() { <-starts }()
	begin := time.Now()
	ready := s.File("admin.kubeconfig")
	_ = os.Remove(ready) // bin/kube writes it again when the server is ready
	args := append([]string{"-dir=" + s.dir, "-listen=" + s.addr}, s.args...)
	proc, err := nettest.Start(s.File("log"), nettest.Tool(s.t, "kube"), args...)
	s.check("start", err)
	s.proc = proc.For(s.t)
	if !s.shared { // use ends a shared one
		s.t.Cleanup(proc.Kill)
	}
	for {
		if _, err := os.Stat(ready); err == nil {
			s.t.Logf("kube-apiserver is ready after %v", time.Since(begin).Round(time.Millisecond))
			return
		}
		select {
		case <-s.proc.Exited():
			s.t.Fatalf("kube-apiserver: exited during the start\n%s", s.proc.Log())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(begin) > timeout {
			s.t.Fatalf("kube-apiserver: not ready\n%s", s.proc.Log())
		}
	}
}

// Stop ends the server with SIGTERM, which closes the store properly.
func (s *Server) Stop() { s.proc.Stop() }

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.proc.Kill() }

// Restart kills the server and starts it again.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Backup copies the store for Restore. The server is stopped meanwhile. A test can call it
// once: the copy is removed with the server, or before another test gets it (clean).
func (s *Server) Backup() {
	s.t.Helper()
	s.Stop()
	s.check("copy the store", os.CopyFS(s.File("backup"), os.DirFS(s.File("etcd"))))
	s.Start()
}

// Restore kills the server and starts it with the store of Backup: the same cluster at an
// older revision.
func (s *Server) Restore() {
	s.t.Helper()
	s.Kill()
	s.check("remove the store", os.RemoveAll(s.File("etcd")))
	s.check("restore the store", os.CopyFS(s.File("etcd"), os.DirFS(s.File("backup"))))
	s.Start()
}

// RestoreBumped is like Restore, in the way that etcd's manual prescribes for clusters with
// watches: see etcdtest.Server.RestoreSnapshot.
func (s *Server) RestoreBumped() {
	s.t.Helper()
	s.Kill()
	s.check("remove the store", os.RemoveAll(s.File("etcd")))
	out, err := exec.Command(nettest.Tool(s.t, "etcdutl"), "snapshot", "restore", s.File("backup/member/snap/db"),
		"--skip-hash-check", "--data-dir="+s.File("etcd"), "--bump-revision=1000000000", "--mark-compacted").CombinedOutput()
	if err != nil {
		s.t.Fatalf("etcdutl: %v\n%s", err, out)
	}
	s.Start()
}

// Pause stops the server with SIGSTOP. The kernel still accepts data on its
// connections, but nothing answers.
func (s *Server) Pause() { s.proc.Pause() }

// Resume continues the server after Pause.
func (s *Server) Resume() { s.proc.Resume() }

// Addr returns host and port of the server, for a proxy. Its certificate is
// also valid for 127.0.0.1.
func (s *Server) Addr() string { return s.addr }

// File returns the path of a file in the directory of the server.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// AuditLog returns the log of the requests of flannel, and of all requests
// about nodes, pods and events: one JSON object a line. It needs the option
// Audit.
func (s *Server) AuditLog() string {
	s.t.Helper()
	text, err := os.ReadFile(s.File("audit.log"))
	s.check("read the audit log", err)
	return string(text)
}

// ApplyManifest applies a file of YAML documents.
func (s *Server) ApplyManifest(path string) {
	s.t.Helper()
	text, err := os.ReadFile(path)
	s.check("read "+path, err)
	objects, err := cluster.Objects(text)
	s.check("read "+path, err)
	s.check("apply "+path, s.Apply(s.context(), false, objects...)) // false: no dry run
}

// AddNode registers a node. With PodCIDRs it waits for the podCIDRs of the node
// and returns them.
func (s *Server) AddNode(name string, addresses ...netip.Addr) []netip.Prefix {
	s.t.Helper()
	ctx := s.context()
	s.check("add node", s.Cluster.AddNode(ctx, name, addresses...))
	if !strings.Contains(strings.Join(s.args, " "), "-cluster-cidr") {
		return nil
	}
	cidrs, err := s.PodCIDRs(ctx, name)
	s.check("add node", err)
	return cidrs
}
