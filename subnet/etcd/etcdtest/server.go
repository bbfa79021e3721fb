// Package etcdtest runs a real etcd for a test, and does to it what happens to one: it is stopped, killed, paused,
// emptied, cut off. Nothing of it outlives the test, and it listens on loopback addresses only.
package etcdtest

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"flannel/pkg/nettest"
)

// Server is one etcd on loopback ports of its own, which it keeps over restarts.
type Server struct {
	t            testing.TB
	dir          string
	client, peer string // host:port
	tls          bool
	clientCerts  bool // only clients with a certificate are let in
	password     string
	flags        []string
	proc         *nettest.Process
}

// Option changes how Start runs etcd.
type Option func(*Server)

// TLS makes etcd speak TLS; see Server.File for the files.
func TLS() Option { return func(s *Server) { s.tls = true } }

// ClientCerts is TLS, and clients need a certificate.
func ClientCerts() Option { return func(s *Server) { s.tls, s.clientCerts = true, true } }

// Password turns authentication on, with the user root.
func Password(p string) Option { return func(s *Server) { s.password = p } }

// Flags adds command-line flags.
func Flags(flags ...string) Option { return func(s *Server) { s.flags = append(s.flags, flags...) } }

// Start runs etcd and returns when it answers. It ends with the test.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), client: nettest.Address(t), peer: nettest.Address(t)}
	for _, o := range opts {
		o(s)
	}
	if s.tls {
		s.makeFiles()
	}
	password := s.password
	s.password = "" // not yet
	s.Start()
	if password != "" {
		c := s.Client()
		ctx := context.Background()
		s.check("add user root", second(c.UserAdd(ctx, "root", password)))
		s.check("grant role root", second(c.UserGrantRole(ctx, "root", "root")))
		s.check("turn authentication on", second(c.AuthEnable(ctx)))
		s.password = password
	}
	return s
}

func second[T any](_ T, err error) error { return err }

func (s *Server) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("etcd: %s: %v\n%s", what, err, s.log())
	}
}

// Endpoint is the URL for clients.
func (s *Server) Endpoint() string { return s.scheme() + "://" + s.client }

// Addr is the host and port for clients.
func (s *Server) Addr() string { return s.client }

func (s *Server) scheme() string {
	if s.tls {
		return "https"
	}
	return "http"
}

// Client is a client with all rights. It ends with the test.
func (s *Server) Client() *clientv3.Client {
	s.t.Helper()
	cfg := clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 10 * time.Minute, Logger: zap.NewNop()}
	if s.tls {
		cfg.TLS = s.clientTLS()
	}
	if s.password != "" {
		cfg.Username, cfg.Password = "root", s.password
	}
	c, err := clientv3.New(cfg)
	s.check("connect", err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Start runs etcd again, on the same data and ports, after Stop or Kill.
func (s *Server) Start() {
	s.t.Helper()
	url, peer := s.Endpoint(), "http://"+s.peer
	args := []string{"--name=test", "--data-dir=" + filepath.Join(s.dir, "data"), "--unsafe-no-fsync",
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url, "--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer, "--initial-cluster=test=" + peer, "--log-level=warn",
		"--heartbeat-interval=50", "--election-timeout=250", "--bcrypt-cost=4"}
	if s.tls {
		args = append(args, "--cert-file="+s.File("server.crt"), "--key-file="+s.File("server.key"))
	}
	if s.clientCerts {
		args = append(args, "--client-cert-auth", "--trusted-ca-file="+s.File("ca.crt"))
	}
	s.proc = nettest.Run(s.t, filepath.Join(s.dir, "log"), nettest.Tool(s.t, "etcd"), append(args, s.flags...)...)
	s.wait()
}

// wait returns when etcd has a leader and answers.
func (s *Server) wait() {
	s.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("tcp", s.client); err == nil {
			conn.Close()
			break
		}
		select {
		case <-s.proc.Exited():
			s.t.Fatalf("etcd: ended at once\n%s", s.log())
		default:
		}
		if time.Since(start) > 10*time.Minute {
			s.t.Fatalf("etcd: does not listen\n%s", s.log())
		}
	}
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s.check("first request", second(c.Get(ctx, "etcdtest")))
}

// Stop ends etcd in an orderly way.
func (s *Server) Stop() { s.proc.Stop() }

// Kill ends etcd at once.
func (s *Server) Kill() { s.proc.Kill() }

// Pause stops etcd as it stands: its kernel still takes packets, it answers none.
func (s *Server) Pause() { s.proc.Pause() }

// Resume ends a pause.
func (s *Server) Resume() { s.proc.Resume() }

// Wipe kills etcd and starts it with an empty store. Authentication is then off.
func (s *Server) Wipe() {
	s.t.Helper()
	s.Kill()
	s.check("remove its data", os.RemoveAll(filepath.Join(s.dir, "data")))
	s.password = ""
	s.Start()
}

// Backup copies the store, stopping etcd meanwhile.
func (s *Server) Backup() {
	s.t.Helper()
	s.Stop()
	s.check("copy its data", os.CopyFS(filepath.Join(s.dir, "backup"), os.DirFS(filepath.Join(s.dir, "data"))))
	s.Start()
}

// Restore kills etcd and starts it with the store of the Backup: same cluster, older history.
func (s *Server) Restore() {
	s.t.Helper()
	s.Kill()
	s.check("remove its data", os.RemoveAll(filepath.Join(s.dir, "data")))
	s.check("copy its data back", os.CopyFS(filepath.Join(s.dir, "data"), os.DirFS(filepath.Join(s.dir, "backup"))))
	s.Start()
}

// Snapshot saves the store, as etcdctl snapshot save does, while etcd runs.
func (s *Server) Snapshot() {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	from, err := c.Snapshot(ctx)
	s.check("ask for a snapshot", err)
	defer from.Close()
	to, err := os.Create(s.File("snapshot"))
	s.check("save the snapshot", err)
	defer to.Close()
	s.check("save the snapshot", second(io.Copy(to, from)))
}

// RestoreSnapshot kills etcd and starts it with the store of the Snapshot as etcd's manual has it for clusters with
// watches: of a much higher revision, so that no revision means two things, and with its history compacted.
func (s *Server) RestoreSnapshot() {
	s.t.Helper()
	s.Kill()
	data, peer := filepath.Join(s.dir, "data"), "http://"+s.peer
	s.check("remove its data", os.RemoveAll(data))
	out, err := exec.Command(nettest.Tool(s.t, "etcdutl"), "snapshot", "restore", s.File("snapshot"), "--data-dir="+data,
		"--name=test", "--initial-cluster=test="+peer, "--initial-advertise-peer-urls="+peer,
		"--bump-revision=1000000000", "--mark-compacted").CombinedOutput()
	if err != nil {
		s.t.Fatalf("etcdutl: %v\n%s", err, out)
	}
	s.Start()
}

// Compact forgets all history before now.
func (s *Server) Compact() {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	resp, err := c.Get(ctx, "etcdtest")
	s.check("ask for the revision", err)
	s.check("compact", second(c.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())))
}

// File is the path of ca.crt, server.crt, server.key, client.crt or client.key.
func (s *Server) File(name string) string { return filepath.Join(s.dir, name) }

func (s *Server) clientTLS() *tls.Config {
	pair, err := tls.LoadX509KeyPair(s.File("client.crt"), s.File("client.key"))
	s.check("load the client certificate", err)
	return &tls.Config{RootCAs: s.pool(), Certificates: []tls.Certificate{pair}}
}

// log is the end of what etcd wrote.
func (s *Server) log() string {
	if s.proc == nil {
		return ""
	}
	return s.proc.Log()
}
