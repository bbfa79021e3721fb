package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
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

	"flannel/pkg/conf"
	"flannel/subnet"
)

var (
	errNoEndpoint = errors.New("no etcd endpoint given")
	errUserInURL  = errors.New("etcd endpoint: no user name belongs in the URL, there are options for it")
	errCertWanted = errors.New("the server asks for a client certificate, and none is configured")
)

// client translates the options into those of the etcd client, whose requests report to
// t, and sets t.endpoints. Its errors are permanent.
func (o Options) client(t *errorTracker) (clientv3.Config, error) {
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
	secure, err := o.tls(t)
	if err != nil {
		return clientv3.Config{}, err
	}
	cfg := clientv3.Config{
		Endpoints:   endpoints,
		TLS:         secure,
		DialTimeout: 10 * time.Second, // of the login; the first attempts of retry have less
		// A dead connection is detected after 13 s (10 + 3). gRPC allows no less than 10 s
		// between pings. They are sent only while a request runs, such as a watch, because
		// the server closes connections that are pinged without one.
		DialKeepAliveTime:    cmp.Or(o.keepAlive, 10*time.Second),
		DialKeepAliveTimeout: 3 * time.Second,
		MaxUnaryRetries:      3, // by the library itself, within one attempt of retry
		MaxCallRecvMsgSize:   maxMessage,
		Logger:               zap.NewNop(), // it logs every retry during an outage
	}
	if o.Username != "" && o.Password != (conf.Secret{}) {
		cfg.Username, cfg.Password = o.Username, o.Password.Reveal()
	}
	t.endpoints = endpoints
	cfg.DialOptions = append(t.dialOptions(), grpc.WithTransportCredentials(t.credentials(endpoints[0], secure)))
	return cfg, nil
}

// plaintextEndpoint returns the endpoint to which the password would be sent
// unencrypted, "" if there is none. The scheme of the first endpoint is used
// for all.
func plaintextEndpoint(cfg clientv3.Config) string {
	if cfg.Username == "" || strings.HasPrefix(strings.ToLower(cfg.Endpoints[0]), "https://") {
		return ""
	}
	return cfg.Endpoints[0]
}

// tls returns the TLS configuration for https endpoints; it is also made for http, whose
// endpoints do not use it. Without a CA file, the system's authorities are trusted. It
// sets t.roots, and t notes that the server asks for a certificate that we do not have.
func (o Options) tls(t *errorTracker) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		t.roots = &rootCAs{file: o.CAFile}
		var err error
		if c.RootCAs, err = t.roots.read(); err != nil {
			return nil, err
		}
	}
	switch {
	case o.CertFile == "" && o.KeyFile == "":
		// Called if the server asks for one. An empty certificate is the answer that Go
		// gives without this function, too; asked helps to explain what follows.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			t.asked.Store(true)
			return &tls.Certificate{}, nil
		}
		return c, nil
	case o.CertFile == "":
		return nil, fmt.Errorf("etcd key file %s is given without a certificate file", o.KeyFile)
	case o.KeyFile == "":
		return nil, fmt.Errorf("etcd certificate file %s is given without a key file", o.CertFile)
	}
	// The files are read here once, so that New returns their errors; and again for
	// each handshake.
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("etcd client certificate %s with key %s: %w", o.CertFile, o.KeyFile, err)
		}
		return &pair, nil
	}
	if _, err := load(nil); err != nil { // nil: no server asks
		return nil, err
	}
	c.GetClientCertificate = load // reads the files again, because the certificate may be renewed
	return c, nil
}

// rootCAs reads the CA file, and is safe for concurrent use.
type rootCAs struct {
	file string
	last atomic.Pointer[x509.CertPool] // of the last read without an error
}

// read returns the certificates of the file; with an error, those of the last read
// without one, or nil if there was none.
func (r *rootCAs) read() (*x509.CertPool, error) {
	pem, err := os.ReadFile(r.file)
	if err != nil {
		return r.last.Load(), fmt.Errorf("etcd CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return r.last.Load(), fmt.Errorf("etcd CA file: no certificate in %s", r.file)
	}
	r.last.Store(pool)
	return pool, nil
}

// errorTracker sits between the client library and gRPC, and is safe for concurrent use.
// It intercepts the requests and keeps the error of the last failed one: when etcd
// cannot be reached, the client library returns "context deadline exceeded", whatever
// the reason. explain then says the reason. It also keeps the connections, for
// Manager.Redial, and logs the requests (trace.go). A Manager has one.
type errorTracker struct {
	log       *slog.Logger
	endpoints []string               // URLs
	roots     *rootCAs               // nil: without a CA file
	last      atomic.Pointer[string] // the error's text; nil: no request has failed
	calls     atomic.Int64           // requests and streams so far, for the tests
	asked     atomic.Bool            // a server requested a client certificate, and we have none
	succeeded atomic.Bool            // a request has succeeded; if we have no client certificate, no server required one then
	conns     subnet.Conns           // all connections that are open
}

// credentials returns the credentials that the client library would use for the
// endpoint, wrapped so that all connections are kept for dropping: gRPC itself
// closes a connection only after a timeout.
func (t *errorTracker) credentials(endpoint string, secure *tls.Config) credentials.TransportCredentials {
	if strings.HasPrefix(strings.ToLower(endpoint), "http://") {
		return handshakes{insecure.NewCredentials(), t, nil}
	}
	return handshakes{credentials.NewTLS(secure), t, secure}
}

// handshakes are gRPC's credentials, which keep each connection before its handshake.
type handshakes struct {
	credentials.TransportCredentials
	tracker *errorTracker
	secure  *tls.Config // of TransportCredentials; nil: no TLS
}

// ClientHandshake implements credentials.TransportCredentials. It remembers the
// connection, so that it can be closed, and reads the CA file again, because the CA
// may be replaced. If the file cannot be used, the handshake trusts the CAs that it
// had before, and an error of the handshake also says what is wrong with the file.
func (h handshakes) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	raw = h.tracker.conns.Keep(raw)
	if h.secure == nil || h.tracker.roots == nil {
		return h.TransportCredentials.ClientHandshake(ctx, authority, raw)
	}
	secure := h.secure.Clone()
	var unusable error
	secure.RootCAs, unusable = h.tracker.roots.read()
	conn, info, err := credentials.NewTLS(secure).ClientHandshake(ctx, authority, raw)
	if err != nil && unusable != nil {
		err = fmt.Errorf("%w (%w)", err, unusable)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.tracker, h.secure}
}

// dialOptions make gRPC tell the tracker the result of each request, and set what the
// client library has no options for.
func (t *errorTracker) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			began := time.Now()
			err := t.record(invoke(ctx, method, req, reply, cc, opts...))
			t.logRequest(method, req, began, err)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn,
			method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			began := time.Now()
			s, err := open(ctx, desc, cc, method, opts...)
			if err == nil && subnet.TracesRequests(t.log) { // the stream logs its requests: they come after it is open
				s = &tracedStream{ClientStream: s, tracker: t, method: method}
			}
			if err != nil {
				t.logRequest(method, nil, began, err)
			}
			return s, t.record(err)
		}),
		// After an outage of any length, the connection must be restored within seconds.
		grpc.WithConnectParams(grpc.ConnectParams{
			// 1.6 and 0.2 are gRPC's defaults.
			Backoff: grpcbackoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			// For the lookup of the name, the connection and the handshake. Go's resolver waits 5 s for a name server
			// that is silent before it asks the next one, in each lookup.
			MinConnectTimeout: 8 * time.Second,
		}),
		// A list of 10,000 leases has 2.5 MB. gRPC's initial windows of 64 KB would
		// require a dozen round trips.
		grpc.WithInitialWindowSize(4 << 20),
		grpc.WithInitialConnWindowSize(8 << 20),
	}
}

// record counts a request, and keeps its error.
func (t *errorTracker) record(err error) error {
	t.calls.Add(1)
	if err != nil {
		t.last.Store(new(status.Convert(err).Message()))
	} else {
		t.succeeded.Store(true)
	}
	return err
}

// explain replaces a timeout by the error of the last failed request, which may be that of
// another activity. For example, "context deadline exceeded" becomes "connection error: …
// connection refused". It also names the endpoints, and a missing client certificate.
func (t *errorTracker) explain(err error) error {
	// The client library returns the context's errors, gRPC its own codes.
	code := status.Code(err)
	vague := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) ||
		code == codes.DeadlineExceeded || code == codes.Canceled
	if text := t.last.Load(); vague && text != nil {
		err = errors.New(*text)
	}
	if vague || code == codes.Unavailable {
		err = t.nameEndpoints(err)
	}
	if t.asked.Load() && !t.succeeded.Load() { // a server that requires a certificate closes the connection without a reason
		return fmt.Errorf("%w (%w)", err, errCertWanted)
	}
	return err
}

// nameEndpoints adds the endpoints to an error about a connection that names none of
// them, such as a timeout.
func (t *errorTracker) nameEndpoints(err error) error {
	for _, e := range t.endpoints {
		if _, host, _ := strings.Cut(e, "://"); strings.Contains(err.Error(), cmp.Or(host, e)) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", strings.Join(t.endpoints, ", "), err)
}

// streamOptions are the options of streams that are opened without the client
// library.
func streamOptions() []grpc.CallOption {
	return []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxMessage)}
}
