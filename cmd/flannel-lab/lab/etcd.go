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

// Etcd is the etcd of a lab. It runs in Infra, and its data is deleted with the
// lab. Several goroutines may call Client at once, but only one the other methods.
type Etcd struct {
	lab  *Lab
	proc *machine.Process // the etcd that was started last; nil before the first start

	once   sync.Once // creates client
	client *clientv3.Client
	err    error // of creating client
}

// Endpoint returns the URL under which nodes reach etcd.
func (e *Etcd) Endpoint() string { return e.url(2379) }

func (e *Etcd) url(port int) string {
	at := address(!e.lab.opts.Family.Has4(), 0, 1).Addr()
	return "http://" + net.JoinHostPort(at.String(), fmt.Sprint(port))
}

// Start starts etcd again after Stop or Kill, with its old data, and waits
// until it answers.
func (e *Etcd) Start(ctx context.Context) error {
	if err := e.launch(); err != nil {
		return err
	}
	return e.ready(ctx)
}

// launch starts the process.
func (e *Etcd) launch() error {
	listen := e.Endpoint() + ",http://127.0.0.1:2379" // the latter for ready, and for commands in Infra
	if e.lab.opts.Family == Dual {
		listen += ",http://" + net.JoinHostPort(address(true, 0, 1).Addr().String(), "2379")
	}
	peer := "http://127.0.0.1:2380" // etcd needs one, although it is the only member
	cmd := exec.Command(e.lab.opts.Etcd, "--name=lab", "--data-dir="+dataDir,
		"--listen-client-urls="+listen, "--advertise-client-urls="+e.Endpoint(),
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=lab="+peer)
	cmd.Args = append(cmd.Args, e.lab.opts.EtcdArgs...)
	var err error
	e.proc, err = machine.StartProcess(e.lab.Infra, cmd, "etcd.log")
	return err
}

// ready waits until /health reports true.
func (e *Etcd) ready(ctx context.Context) error {
	_, err := machine.Until(ctx, machine.Longest, func(ctx context.Context) error {
		if !e.proc.Running() {
			return machine.Fatal(fmt.Errorf("etcd exited: %s", machine.LastLine(e.proc.Log())))
		}
		code, body, err := e.lab.Infra.Get(ctx, "http://127.0.0.1:2379/health")
		if err == nil && (code != 200 || !strings.Contains(body, "true")) {
			err = fmt.Errorf("/health of etcd: status %d: %s", code, body)
		}
		return err
	})
	return err
}

// Stop ends etcd with SIGTERM.
func (e *Etcd) Stop(ctx context.Context) error {
	_, err := e.proc.Stop(ctx, syscall.SIGTERM)
	return err
}

// Kill ends etcd with SIGKILL, as a crash would.
func (e *Etcd) Kill() error {
	_, err := e.proc.Stop(context.Background(), syscall.SIGKILL)
	return err
}

const dataDir, savedDir = "/var/lib/etcd/data", "/var/lib/etcd/saved"

// Save copies the data for Restore. etcd is stopped meanwhile, and runs again when
// Save returns. A second Save is not supported: it would not replace the first copy.
func (e *Etcd) Save(ctx context.Context) error {
	if err := e.Stop(ctx); err != nil {
		return err
	}
	if _, err := e.lab.Infra.Run(ctx, "cp", "-a", dataDir, savedDir); err != nil {
		return err
	}
	return e.Start(ctx)
}

// Restore kills etcd and starts it with the data of the last Save: the same
// cluster at an older revision.
func (e *Etcd) Restore(ctx context.Context) error {
	return e.restart(ctx, "rm -rf "+dataDir+"; cp -a "+savedDir+" "+dataDir)
}

// Replace kills etcd and starts it without data.
func (e *Etcd) Replace(ctx context.Context) error { return e.restart(ctx, "rm -rf "+dataDir) }

// restart kills etcd, runs a shell script in Infra, and starts it again.
func (e *Etcd) restart(ctx context.Context, script string) error {
	if err := e.Kill(); err != nil {
		return err
	}
	if _, err := e.lab.Infra.Run(ctx, "sh", "-ec", script); err != nil {
		return err
	}
	return e.Start(ctx)
}

// Pause stops etcd with SIGSTOP. Its connections stay open and nothing answers,
// as when a server vanishes from the network.
func (e *Etcd) Pause() error { return e.proc.Signal(syscall.SIGSTOP) }

// Resume continues etcd after Pause.
func (e *Etcd) Resume() error { return e.proc.Signal(syscall.SIGCONT) }

// Log returns everything that etcd has written.
func (e *Etcd) Log() string { return e.proc.Log() }

// Client returns a client for tests. The lab owns it and closes it.
func (e *Etcd) Client() (*clientv3.Client, error) {
	e.once.Do(func() { e.client, e.err = clientv3.New(e.ClientConfig()) })
	return e.client, e.err
}

// ClientConfig returns the configuration of a client that runs outside of the
// lab's namespaces. To use TLS or a user, change it and call clientv3.New; the
// caller then owns the client.
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

// Compact deletes the history before the current revision. A watch that starts
// at an older revision then fails.
func (e *Etcd) Compact(ctx context.Context) error {
	c, err := e.Client()
	if err != nil {
		return err
	}
	resp, err := c.Get(ctx, "any") // for the revision in the header; the key need not exist
	if err != nil {
		return err
	}
	// Physical: it returns when the history is deleted.
	_, err = c.Compact(ctx, resp.Header.Revision, clientv3.WithCompactPhysical())
	return err
}

// list returns the values below prefix, by the rest of their key.
func (e *Etcd) list(ctx context.Context, prefix string) (map[string]string, error) {
	c, err := e.Client()
	if err != nil {
		return nil, err
	}
	resp, err := c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", prefix, err)
	}
	values := map[string]string{}
	for _, kv := range resp.Kvs {
		values[strings.TrimPrefix(string(kv.Key), prefix)] = string(kv.Value)
	}
	return values, nil
}

// close kills etcd and closes the client.
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
