// Package kubetest runs a real kube-apiserver for a test, with the controller that gives nodes their podCIDRs and with
// our manifest applied, and does to it what happens to one: it is killed, paused, started again. Nothing of it outlives
// the test, and it listens on a loopback address only.
package kubetest

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"flannel/pkg/nettest"
	"flannel/subnet/kube/kubetest/cluster"
)

// Server is one kube-apiserver, on an address and with data that it keeps over restarts. Its Client and Config are the
// administrator's.
type Server struct {
	*cluster.Cluster
	t    testing.TB
	dir  string
	addr string
	args []string
	bare bool
	proc *nettest.Process
}

// Option changes how Start runs the server.
type Option func(*Server)

// PodCIDRs makes node-ipam give every node a subnet of each of these (IPv4 first), of 24 and 64 bits. Without it the
// test sets podCIDRs itself.
func PodCIDRs(cluster ...string) Option {
	return func(s *Server) { s.args = append(s.args, "-cluster-cidr="+strings.Join(cluster, ",")) }
}

// NodeMasks sets the lengths of podCIDRs, such as "26,112"; it goes with PodCIDRs.
func NodeMasks(lengths string) Option {
	return func(s *Server) { s.args = append(s.args, "-node-cidr-mask="+lengths) }
}

// Audit makes AuditLog tell what was asked for.
func Audit() Option { return func(s *Server) { s.args = append(s.args, "-audit") } }

// Bare leaves our manifest out.
func Bare() Option { return func(s *Server) { s.bare = true } }

// Start runs the server and returns when it is ready and our manifest is applied. It ends with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), addr: nettest.Address(t)}
	for _, o := range opts {
		o(s)
	}
	s.Start()
	config, err := clientcmd.BuildConfigFromFlags("", s.File("admin.kubeconfig"))
	s.check("read its kubeconfig", err)
	config.QPS, config.Burst = -1, 0
	s.Cluster, err = cluster.Open(config)
	s.check("make clients", err)
	if !s.bare {
		s.ApplyManifest(filepath.Join(nettest.Root(t), "Documentation", "kube-flannel.yml"))
	}
	return s
}

func (s *Server) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("kube-apiserver: %s: %v\n%s", what, err, s.proc.Log())
	}
}

// context bounds what the helper itself asks for.
func (s *Server) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.t.Cleanup(cancel)
	return ctx
}

// patience is how long the helper waits: to start takes seconds, or minutes on a machine that does much else.
const patience = 10 * time.Minute

// starts bounds how many servers start at once, which is all work: eight at once are ready later than four after four.
var starts = make(chan struct{}, max(2, runtime.NumCPU()))

// Start runs the server again, on the same data and address, after Stop or Kill, and returns when it is ready.
func (s *Server) Start() {
	s.t.Helper()
	starts <- struct{}{}
	defer func() { <-starts }()
	begin := time.Now()
	ready := s.File("admin.kubeconfig")
	_ = os.Remove(ready) // it is there again when the server is ready
	args := append([]string{"-dir=" + s.dir, "-listen=" + s.addr}, s.args...)
	s.proc = nettest.Run(s.t, s.File("log"), nettest.Tool(s.t, "kube"), args...)
	for {
		if _, err := os.Stat(ready); err == nil {
			s.t.Logf("kube-apiserver is ready after %v", time.Since(begin).Round(time.Millisecond))
			return
		}
		select {
		case <-s.proc.Exited():
			s.t.Fatalf("kube-apiserver: ended at once\n%s", s.proc.Log())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Since(begin) > patience {
			s.t.Fatalf("kube-apiserver: not ready\n%s", s.proc.Log())
		}
	}
}

// Stop ends the server with SIGTERM, in good order as far as the store goes.
func (s *Server) Stop() { s.proc.Stop() }

// Kill ends the server at once.
func (s *Server) Kill() { s.proc.Kill() }

// Restart kills the server and starts it again.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.Start()
}

// Backup copies the store, stopping the server meanwhile.
func (s *Server) Backup() {
	s.t.Helper()
	s.Stop()
	s.check("copy its store", os.CopyFS(s.File("backup"), os.DirFS(s.File("etcd"))))
	s.Start()
}

// Restore kills the server and starts it on the store of the Backup: same cluster, older history.
func (s *Server) Restore() {
	s.t.Helper()
	s.Kill()
	s.check("remove its store", os.RemoveAll(s.File("etcd")))
	s.check("copy its store back", os.CopyFS(s.File("etcd"), os.DirFS(s.File("backup"))))
	s.Start()
}

// Pause stops the server as it stands: its kernel still takes packets, it answers none.
func (s *Server) Pause() { s.proc.Pause() }

// Resume ends a pause.
func (s *Server) Resume() { s.proc.Resume() }

// PID is that of the server's process, for /proc.
func (s *Server) PID() int { return s.proc.PID() }

// Addr is the server's host and port, for a proxy. Its certificate is good for 127.0.0.1, too.
func (s *Server) Addr() string { return s.addr }

// File is the path of a file of the server's directory.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

// AuditLog is what was asked of the server by flannel, or about nodes, pods and events, a JSON object on each line. It takes Audit.
func (s *Server) AuditLog() string {
	s.t.Helper()
	text, err := os.ReadFile(s.File("audit.log"))
	s.check("read its audit log", err)
	return string(text)
}

// ApplyManifest applies a file of YAML documents.
func (s *Server) ApplyManifest(path string) {
	s.t.Helper()
	text, err := os.ReadFile(path)
	s.check("read "+path, err)
	objects, err := cluster.Objects(text)
	s.check("read "+path, err)
	s.check("apply "+path, s.Apply(s.context(), false, objects...))
}

// AddNode registers a node; with PodCIDRs it waits for its podCIDRs and returns them.
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
