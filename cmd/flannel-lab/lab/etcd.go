package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"flannel/cmd/flannel-lab/machine"
)

// Etcd is the real etcd of a lab. It runs in Infra; its data is gone with the lab.
type Etcd struct {
	lab  *Lab
	proc *machine.Process

	once   sync.Once
	client *clientv3.Client
	err    error
}

// Endpoint is the URL by which nodes reach it.
func (e *Etcd) Endpoint() string { return e.url(2379) }

func (e *Etcd) url(port int) string {
	at := address(!e.lab.opts.Family.Has4(), 0, 1).Addr()
	return "http://" + net.JoinHostPort(at.String(), fmt.Sprint(port))
}

// Start starts it after Stop or Kill, on the data that it had, and waits until it answers.
func (e *Etcd) Start(ctx context.Context) error {
	if err := e.launch(); err != nil {
		return err
	}
	return e.ready(ctx)
}

func (e *Etcd) launch() error {
	listen := e.Endpoint() + ",http://127.0.0.1:2379"
	if e.lab.opts.Family == Dual {
		listen += ",http://" + net.JoinHostPort(address(true, 0, 1).Addr().String(), "2379")
	}
	peer := "http://127.0.0.1:2380"
	cmd := exec.Command(e.lab.opts.Etcd, "--name=lab", "--data-dir="+dataDir,
		"--listen-client-urls="+listen, "--advertise-client-urls="+e.Endpoint(),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=lab="+peer)
	cmd.Args = append(cmd.Args, e.lab.opts.EtcdArgs...)
	var err error
	e.proc, err = machine.StartProcess(e.lab.Infra, cmd, "etcd.log")
	return err
}

func (e *Etcd) ready(ctx context.Context) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		if !e.proc.Running() {
			return machine.Fatal(fmt.Errorf("etcd ended: %s", machine.LastLine(e.proc.Log())))
		}
		code, body, err := e.lab.Infra.Get(ctx, "http://127.0.0.1:2379/health")
		if err == nil && (code != 200 || !strings.Contains(body, "true")) {
			err = fmt.Errorf("etcd says %d %s", code, body)
		}
		return err
	})
	return err
}

// Stop ends it in good order. Start brings it back.
func (e *Etcd) Stop(ctx context.Context) error {
	_, err := e.proc.Stop(ctx, syscall.SIGTERM)
	return err
}

// Kill ends it as a crash would.
func (e *Etcd) Kill() error {
	_, err := e.proc.Stop(context.Background(), syscall.SIGKILL)
	return err
}

const dataDir, savedDir = "/var/lib/etcd/data", "/var/lib/etcd/saved"

// Save copies the store for Restore, stopping etcd meanwhile.
func (e *Etcd) Save(ctx context.Context) error {
	if err := e.Stop(ctx); err != nil {
		return err
	}
	if _, err := e.lab.Infra.Run(ctx, "cp", "-a", dataDir, savedDir); err != nil {
		return err
	}
	return e.Start(ctx)
}

// Restore kills etcd and starts it on what Save has kept: the same cluster, its history cut off.
func (e *Etcd) Restore(ctx context.Context) error {
	return e.restart(ctx, "rm -rf "+dataDir+"; cp -a "+savedDir+" "+dataDir)
}

// Replace kills etcd and starts another one with nothing in it.
func (e *Etcd) Replace(ctx context.Context) error { return e.restart(ctx, "rm -rf "+dataDir) }

func (e *Etcd) restart(ctx context.Context, between string) error {
	if err := e.Kill(); err != nil {
		return err
	}
	if _, err := e.lab.Infra.Run(ctx, "sh", "-ec", between); err != nil {
		return err
	}
	return e.Start(ctx)
}

// Pause makes it deaf with its connections open: what a peer that vanished without a word looks like.
func (e *Etcd) Pause() error { return e.proc.Signal(syscall.SIGSTOP) }

// Resume ends Pause.
func (e *Etcd) Resume() error { return e.proc.Signal(syscall.SIGCONT) }

// Log is what it has written so far.
func (e *Etcd) Log() string { return e.proc.Log() }

// Client is a client for the test itself. It belongs to the lab; Close closes it.
func (e *Etcd) Client() (*clientv3.Client, error) {
	e.once.Do(func() { e.client, e.err = clientv3.New(e.ClientConfig()) })
	return e.client, e.err
}

// ClientConfig reaches etcd from outside of its namespaces; add TLS or a user and call clientv3.New for a client of your own.
func (e *Etcd) ClientConfig() clientv3.Config {
	dial := func(ctx context.Context, addr string) (net.Conn, error) { return e.lab.Infra.Dial(ctx, "tcp", addr) }
	return clientv3.Config{
		Endpoints:   []string{e.Endpoint()},
		DialTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
		Logger:      zap.NewNop(),
	}
}

// Wipe deletes every key.
func (e *Etcd) Wipe(ctx context.Context) error {
	c, err := e.Client()
	if err != nil {
		return err
	}
	_, err = c.Delete(ctx, "", clientv3.WithPrefix())
	return err
}

// Compact forgets every revision before the current one: a watch from an older one fails.
func (e *Etcd) Compact(ctx context.Context) error {
	c, err := e.Client()
	if err != nil {
		return err
	}
	now, err := c.Get(ctx, "any")
	if err != nil {
		return err
	}
	_, err = c.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

func (e *Etcd) list(ctx context.Context, prefix string) (map[string]string, error) {
	c, err := e.Client()
	if err != nil {
		return nil, err
	}
	got, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	all := map[string]string{}
	for _, kv := range got.Kvs {
		all[strings.TrimPrefix(string(kv.Key), prefix)] = string(kv.Value)
	}
	return all, nil
}

func (e *Etcd) close() error {
	var errs []error
	if e.client != nil {
		errs = append(errs, e.client.Close())
	}
	if e.proc != nil {
		_, err := e.proc.Stop(context.Background(), syscall.SIGKILL)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
