package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"flannel/pkg/conf"
	"flannel/pkg/file"
	"flannel/subnet"
)

// restConfig returns client-go's configuration, with the credentials of the kubeconfig or else of the pod's service
// account. o.APIURL overrides their server. Outside of a pod and without a kubeconfig, it uses o.APIURL without
// credentials. It reads files only. The URL of the server is valid.
func (o Options) restConfig() (*rest.Config, error) {
	if o.Kubeconfig != "" {
		return o.ofKubeconfig()
	}
	cfg, err := inCluster()
	if err != nil {
		// Without variables of a pod or without the files of a service account, this is no pod.
		if o.APIURL == "" || !errors.Is(err, rest.ErrNotInCluster) && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("credentials for the Kubernetes API: %w (outside of a pod, set --kubeconfig-file)", err)
		}
		cfg = &rest.Config{}
	}
	cfg.Host = cmp.Or(o.APIURL, cfg.Host)
	if _, _, err := rest.DefaultServerUrlFor(cfg); err != nil {
		return nil, fmt.Errorf("address of the API server: %w", withoutPassword(err, cfg.Host))
	}
	return cfg, nil
}

// ofKubeconfig implements restConfig with a kubeconfig, whose URLs may have passwords, also of clusters that are not used.
func (o Options) ofKubeconfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags(o.APIURL, o.Kubeconfig)
	urls, server := []string{o.APIURL}, "address of the API server"
	if all, loadErr := clientcmd.LoadFromFile(o.Kubeconfig); loadErr == nil {
		for _, c := range all.Clusters {
			urls = append(urls, c.Server, c.ProxyURL)
		}
		if used := all.Contexts[all.CurrentContext]; used != nil && o.APIURL == "" {
			server = fmt.Sprintf("server of cluster %q", used.Cluster)
		}
	}
	if err == nil {
		if _, _, err = rest.DefaultServerUrlFor(cfg); err == nil {
			return cfg, nil
		}
		err, urls = fmt.Errorf("%s: %w", server, err), append(urls, cfg.Host)
	}
	return nil, fmt.Errorf("kubeconfig %s: %w", o.Kubeconfig, withoutPassword(err, urls...))
}

// quoted matches what net/url quotes in the reason of an error.
var quoted = regexp.MustCompile(`".*"`)

// withoutPassword returns an error without those of the URLs that have a user: client-go quotes URLs that it cannot parse.
// So does net/url, with the part that is wrong, and without what follows a #, even if that is in the password.
func withoutPassword(err error, urls ...string) error {
	const percentEncode = "; percent-encode the special characters of a password"
	text, hint := err.Error(), ""
	var forms []string
	for _, u := range urls {
		if !strings.Contains(u, "@") {
			continue
		}
		before, _, _ := strings.Cut(u, "#")
		for _, part := range []string{u, cmp.Or(before, u)} {
			forms = append(forms, part, strings.Trim(strconv.Quote(part), `"`))
		}
		if _, parseErr := url.Parse(u); parseErr != nil {
			hint = percentEncode
		}
	}
	var parseErr *url.Error
	if errors.As(err, &parseErr) && forms != nil {
		reason := parseErr.Err.Error()
		hint = percentEncode
		text = strings.ReplaceAll(text, reason, quoted.ReplaceAllString(reason, conf.Redacted))
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // one may be the beginning of another
	for _, form := range forms {
		text = strings.ReplaceAll(text, form, conf.Redacted)
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text + hint)
}

// TokenFile returns the path of the token of a pod's service account, also if this process is in no pod.
func TokenFile() string { return accountFile("token") }

// accountFile returns the path of a file of the pod's service account. An older Windows has the volumes of a HostProcess
// container below the container's root alone: file.Mounted returns the path at which a file exists.
func accountFile(name string) string {
	return file.Mounted(os.Getenv(file.SandboxMount), "/var/run/secrets/kubernetes.io/serviceaccount/"+name)
}

// inCluster returns the credentials of the pod's service account.
func inCluster() (*rest.Config, error) {
	cfg, err := rest.InClusterConfig()
	if !errors.Is(err, fs.ErrNotExist) { // also if err is nil
		return cfg, err
	}
	// The files are not where rest.InClusterConfig reads them: this is no pod, or they are below the container's root.
	tokenFile := TokenFile()
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:        "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
		BearerToken: string(token), BearerTokenFile: tokenFile,
		TLSClientConfig: rest.TLSClientConfig{CAFile: accountFile("ca.crt")},
	}, nil
}

// A dead connection is detected after pingAfter + pingTimeout. A server that is back after an outage is detected within
// dialTimeout and the pause before the next attempt (subnet.Pause, at most 2 s). The times are chosen,
// not derived: each bears some lost packets.
const (
	pingAfter   = 5 * time.Second // without data
	pingTimeout = 5 * time.Second
	// dialTimeout includes the lookup of the name. Go's resolver waits 5 s for a name server that is silent before it asks
	// the next one, in each lookup.
	dialTimeout = 8 * time.Second
	tlsTimeout  = 4 * time.Second // with dialTimeout less than requestTimeout
	// headerTimeout bounds the wait for the response headers. It is shorter than the minute to which the API server limits
	// a request, so a server that needs longer than headerTimeout counts as failed.
	headerTimeout = 30 * time.Second
)

// reconnector is the transport to the API server. After a failed or unauthorized request it makes a new
// http.Transport, so that the next request opens a new connection and reads the certificate files again. The old
// connection may be dead without an error, or have been opened with a client certificate that has expired since.
// (Files of tokens are read again by the wrapper around the reconnector, from client-go.) After these requests, and
// forbidden ones, it also has a changed kubeconfig read. An apiClient has one; it is safe for concurrent use.
type reconnector struct {
	conns  subnet.Conns // open ones of all transports, for Manager.Redial
	log    *slog.Logger // for requests, at the debug level, and reload
	reload func()       // calls use if the kubeconfig has changed; nil: there is none. renew calls it, with mu held

	mu  sync.Mutex        // guards the rest
	cfg *transport.Config // with the names of the certificate files
	rt  *http.Transport   // for the next request
}

// dialer opens connections to the API server. TCP's own probes are for a connection by HTTP/1, which has no pings: after
// 5 + 3·2 s it is dead.
var dialer = &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: pingAfter, Interval: 2 * time.Second, Count: 3,
}}

// use makes a transport for the next request, with the files of certificates as they are now. With an error, the former
// one stays. Requests that still run over the former one may go on, and their connections are closed when they become
// idle. mu must be held once requests are sent.
func (r *reconnector) use(cfg *transport.Config) error {
	rt, err := r.newTransport(*cfg)
	if err != nil {
		return err
	}
	if r.rt != nil {
		r.rt.CloseIdleConnections()
	}
	r.cfg, r.rt = cfg, rt
	return nil
}

// newTransport makes a transport. cfg is a copy, because TLSConfigFor stores the files' content in it.
func (r *reconnector) newTransport(cfg transport.Config) (*http.Transport, error) {
	tlsConfig, err := transport.TLSConfigFor(&cfg)
	if err != nil {
		return nil, fmt.Errorf("certificates for the Kubernetes API: %w", err)
	}
	dialAndKeep := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := cfg.DialHolder.Dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return r.conns.Keep(conn), nil // its Close removes it from conns
	}
	proxy := http.ProxyFromEnvironment
	if cfg.Proxy != nil {
		proxy = cfg.Proxy
	}
	return &http.Transport{
		DialContext: dialAndKeep, TLSClientConfig: tlsConfig, TLSHandshakeTimeout: tlsTimeout, Proxy: proxy,
		// Go does not use HTTP/2 by itself with a DialContext.
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		ResponseHeaderTimeout: headerTimeout, IdleConnTimeout: 90 * time.Second, // Go's default
		DisableCompression: cfg.DisableCompression,
	}, nil
}

// current returns the transport for the next request.
func (r *reconnector) current() *http.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rt
}

// RoundTrip implements http.RoundTripper.
func (r *reconnector) RoundTrip(req *http.Request) (*http.Response, error) {
	rt, began := r.current(), time.Now()
	resp, err := rt.RoundTrip(req)
	r.logRequest(req, began, resp, err)
	switch {
	case err != nil && errors.Is(req.Context().Err(), context.Canceled):
		// Its caller has ended it, which says nothing about the connection. The end of its time does.
	case err != nil || resp.StatusCode == http.StatusUnauthorized:
		r.renew(rt, true)
	case resp.StatusCode == http.StatusForbidden: // perhaps for good, as of Events by the role
		r.renew(rt, false)
	}
	return resp, err
}

// logRequest logs a request when its response begins: that of a watch has no end.
func (r *reconnector) logRequest(req *http.Request, began time.Time, resp *http.Response, err error) {
	if !subnet.TracesRequests(r.log) {
		return
	}
	verb, object, result := req.Method, req.URL.Path, ""
	query, _ := url.QueryUnescape(req.URL.RawQuery)
	if query != "" {
		object += "?" + query
	}
	if b, _ := strconv.ParseBool(req.URL.Query().Get("watch")); b {
		verb = "WATCH"
	}
	if err != nil {
		result = err.Error()
	} else {
		result = resp.Status
	}
	subnet.LogRequest(r.log, verb, fmt.Sprintf("%.200s", object), began, result)
}

// renew reads a changed kubeconfig after a failed request. If it has not changed and replace is set, it makes a new
// transport in place of the failed one.
func (r *reconnector) renew(failed *http.Transport, replace bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rt != failed {
		return // another request has done so
	}
	if r.reload != nil {
		r.reload()
	}
	if r.rt == failed && replace {
		_ = r.use(r.cfg) // the certificate files may just be being replaced: the next failed request tries again
	}
}
