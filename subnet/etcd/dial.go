package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"flannel/subnet/patience"
)

var (
	errNoEndpoint = errors.New("no etcd endpoint given")
	errUserInURL  = errors.New("etcd endpoint: no user name belongs in the URL, there are options for it")
	errCertWanted = errors.New("the server asks for a client certificate, and none is configured")
)

// client turns the options into those of the etcd client.
func (o Options) client(w *errorTracker) (clientv3.Config, error) {
	var endpoints []string
	for _, e := range o.Endpoints {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		if strings.Contains(e, "@") { // the part before it may be a password: do not quote it
			return clientv3.Config{}, errUserInURL
		}
		endpoints = append(endpoints, e)
	}
	if len(endpoints) == 0 {
		return clientv3.Config{}, errNoEndpoint
	}
	secure, err := o.tls(w)
	if err != nil {
		return clientv3.Config{}, err
	}
	cfg := clientv3.Config{
		Endpoints:   endpoints,
		TLS:         secure,
		DialTimeout: 10 * time.Second, // of the login; each attempt ends earlier
		// A peer that falls silent is noticed after 13 s. gRPC takes no less than 10 s, and a server closes
		// connections that are pinged while no request is open on them.
		DialKeepAliveTime:    positive(o.keepAlive, 10*time.Second),
		DialKeepAliveTimeout: 3 * time.Second,
		MaxUnaryRetries:      3,
		MaxCallRecvMsgSize:   maxMessage,
		Logger:               zap.NewNop(), // an outage would be a line per retry
	}
	if o.Username != "" && o.Password != "" {
		cfg.Username, cfg.Password = o.Username, o.Password
	}
	cfg.DialOptions = append(w.dialOptions(), grpc.WithTransportCredentials(w.credentials(endpoints[0], secure)))
	return cfg, nil
}

// plaintext is the endpoint to which a password would go unencrypted, "" if there is none. The first endpoint's scheme
// counts for all.
func plaintext(cfg clientv3.Config) string {
	if cfg.Username == "" || strings.HasPrefix(strings.ToLower(cfg.Endpoints[0]), "https://") {
		return ""
	}
	return cfg.Endpoints[0]
}

// tls is what an https endpoint is spoken to with; without a CA file it is checked against the system's authorities.
func (o Options) tls(w *errorTracker) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("etcd CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd CA file: no certificate in %s", o.CAFile)
		}
	}
	switch {
	case o.CertFile == "" && o.KeyFile == "":
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			w.asked.Store(true)
			return &tls.Certificate{}, nil
		}
		return c, nil
	case o.CertFile == "":
		return nil, fmt.Errorf("etcd key file %s is given without a certificate file", o.KeyFile)
	case o.KeyFile == "":
		return nil, fmt.Errorf("etcd certificate file %s is given without a key file", o.CertFile)
	}
	// A wrong file is an error now, where somebody reads it, rather than at the first handshake.
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("etcd client certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		return &pair, nil
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	c.GetClientCertificate = load // a certificate renewed on disk is taken at the next connection
	return c, nil
}

// wire watches the requests go by. It keeps why the last one failed: the client's own error for a server that cannot
// be reached is "context deadline exceeded", whatever the reason.
type errorTracker struct {
	last  atomic.Pointer[string]
	calls atomic.Int64 // requests and streams so far
	asked atomic.Bool  // the server wanted a client certificate, and we have none
	conns patience.Conns
}

// credentials are those that the client library would use for the endpoint, and through them pass all connections:
// gRPC closes none before it has waited for an answer.
func (w *errorTracker) credentials(endpoint string, secure *tls.Config) credentials.TransportCredentials {
	if strings.HasPrefix(strings.ToLower(endpoint), "http://") {
		return handshakes{insecure.NewCredentials(), w}
	}
	return handshakes{credentials.NewTLS(secure), w}
}

// handshakes notes each connection before it is used.
type handshakes struct {
	credentials.TransportCredentials
	tracker *errorTracker
}

func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return h.TransportCredentials.ClientHandshake(ctx, authority, h.tracker.conns.Keep(raw))
}

func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.tracker}
}

func (w *errorTracker) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return w.note(invoke(ctx, method, req, reply, cc, opts...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			return s, w.note(err)
		}),
		// A server that is back must be noticed within seconds, however long it was away.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           grpcbackoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		// The list of 10,000 leases has 2.5 MB: with gRPC's first windows of 64 KB it takes a dozen round trips.
		grpc.WithInitialWindowSize(4 << 20),
		grpc.WithInitialConnWindowSize(8 << 20),
	}
}

func (w *errorTracker) note(err error) error {
	w.calls.Add(1)
	if err != nil {
		text := status.Convert(err).Message()
		w.last.Store(&text)
	}
	return err
}

// explain puts the reason in the place of a mere timeout.
func (w *errorTracker) explain(err error) error {
	// The client library gives the context's errors, gRPC its own.
	vague := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
		vague = true
	}
	if text := w.last.Load(); vague && text != nil {
		err = errors.New(*text)
	}
	if w.asked.Load() { // a server that insists just hangs up
		return fmt.Errorf("%w (%w)", err, errCertWanted)
	}
	return err
}

// streamOptions are for streams that are opened without the help of the client library.
func streamOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxMessage)}
}
