package main

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"

	"flannel/pkg/conf"
	"flannel/subnet"
)

// The functions set… are the Set of rows in the table of flags. They validate a
// value, also the default, and set it in o.

// setEndpoints replaces the default endpoints by a list, separated by commas.
func setEndpoints(o *options, v string) error {
	o.Etcd.Endpoints = nil
	for e := range strings.SplitSeq(v, ",") {
		if e = strings.TrimSpace(e); e == "" {
			continue
		}
		if err := checkEndpoint(e); err != nil {
			return err
		}
		o.Etcd.Endpoints = append(o.Etcd.Endpoints, strings.TrimSuffix(e, "/"))
	}
	if len(o.Etcd.Endpoints) == 0 {
		return errors.New("no endpoint; use one like http://127.0.0.1:2379")
	}
	return nil
}

// checkEndpoint validates an endpoint. An endpoint with a user may contain a
// password, therefore its error does not quote it.
func checkEndpoint(e string) error {
	if strings.Contains(e, "@") {
		return errors.New("an endpoint must not contain a user; use --etcd-username and --etcd-password")
	}
	full := e
	if !strings.Contains(e, "://") {
		full = "http://" + e // host:port is valid; complete adds the scheme
	}
	u, err := url.Parse(full)
	if broken, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("%.60q is no URL: %w; use one like http://127.0.0.1:2379", e, broken.Err)
	}
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%.60q has neither http:// nor https://; use one like http://127.0.0.1:2379", e)
	case u.Hostname() == "" || u.Port() == "":
		return fmt.Errorf("%.60q lacks a host or a port; use one like http://127.0.0.1:2379", e)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%.60q has a path; use only %s://%s", e, u.Scheme, u.Host)
	}
	if n, err := strconv.Atoi(u.Port()); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%.60q has an invalid port; use 1 to 65535", e)
	}
	return nil
}

// complete adds a scheme to endpoints without one: https if a CA or client
// certificate is given, else http.
func (o *etcdOptions) complete() {
	scheme := "http://"
	if o.CAFile != "" || o.CertFile != "" {
		scheme = "https://"
	}
	for i, e := range o.Endpoints {
		if !strings.Contains(e, "://") {
			o.Endpoints[i] = scheme + e
		}
	}
}

// complete sets the names of the node and the pod from the environment.
func (o *kubeOptions) complete(environ []string) {
	o.NodeName, o.PodName = variable(environ, "NODE_NAME"), variable(environ, "POD_NAME")
	o.PodNamespace = variable(environ, "POD_NAMESPACE")
}

// setPrefix cleans the prefix as a path, because keys are made by appending to
// it. A missing leading slash is not added, since it is a part of the keys'
// names.
func setPrefix(o *options, v string) error {
	p := path.Clean(v)
	if first, _, _ := strings.Cut(strings.Trim(p, "/"), "/"); first == "" || first == "." || first == ".." {
		return fmt.Errorf("invalid etcd prefix %.60q; use one like /coreos.com/network", v)
	}
	o.Etcd.Prefix = p
	if !strings.HasPrefix(v, "/") {
		o.Warnings = append(o.Warnings, fmt.Sprintf("--etcd-prefix: %.60q has no leading slash, so its keys differ from those below %.60q", v, "/"+o.Etcd.Prefix))
	}
	return nil
}

func setAPIURL(o *options, v string) error {
	if v == "" {
		return nil
	}
	u, err := url.Parse(v)
	if broken, ok := errors.AsType[*url.Error](err); ok && !strings.Contains(v, "@") { // else it may have a password
		return fmt.Errorf("%.60q is no URL: %w; use one like https://10.0.0.1:6443", v, broken.Err)
	}
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return errors.New("invalid URL of an API server; use one like https://10.0.0.1:6443")
	}
	o.Kube.APIURL = v
	return nil
}

func setAnnotationPrefix(o *options, v string) (err error) {
	o.Kube.AnnotationPrefix, err = annotationPrefix(v)
	return err
}

// annotationForm is Kubernetes' form of an annotation's key, a DNS name, "/" and a
// word, with room in the word (63 bytes at most) for the names that are appended.
var annotationForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/([A-Za-z0-9][-A-Za-z0-9_.]{0,40})?$`)

// annotationPrefix completes the prefix so that the names of annotations can be
// added to it: "example.com" becomes "example.com/", and "example.com/net"
// becomes "example.com/net-".
func annotationPrefix(v string) (string, error) {
	p := v
	if !strings.Contains(p, "/") {
		p += "/"
	}
	if !strings.HasSuffix(p, "/") && !strings.HasSuffix(p, "-") {
		p += "-"
	}
	if !annotationForm.MatchString(p) {
		return "", fmt.Errorf("invalid annotation prefix %.60q; use a domain, with at most one / and a word after it", v)
	}
	return p, nil
}

func setCanReach(o *options, v string) error { return setIP(&o.Underlay.CanReach, v) }

func setPublicV4(o *options, v string) error { return setPublic(&o.Underlay.PublicV4, v, false) }

func setPublicV6(o *options, v string) error { return setPublic(&o.Underlay.PublicV6, v, true) }

// setTunnelSources adds addresses.
func setTunnelSources(o *options, v string) error {
	for text := range strings.SplitSeq(v, ",") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		a, err := conf.ParseAddress(text)
		if err != nil {
			return err
		}
		if len(o.TunnelSources) == subnet.MaxSources-1 {
			return fmt.Errorf("%s is one too many; a node may have %d sources, one of which is its own address", a, subnet.MaxSources)
		}
		o.TunnelSources = append(o.TunnelSources, a)
	}
	return nil
}

// setIP sets an address. An empty value leaves it unchanged.
func setIP(to *netip.Addr, v string) error {
	if v == "" {
		return nil
	}
	a, err := conf.ParseAddress(v)
	if err == nil {
		*to = a
	}
	return err
}

// setPublic sets an address that other nodes can send packets to.
func setPublic(to *netip.Addr, v string, v6 bool) error {
	var a netip.Addr
	if err := setIP(&a, v); err != nil || !a.IsValid() {
		return err
	}
	switch {
	case a.Is4() && v6:
		return fmt.Errorf("%s is an IPv4 address; give it as --public-ip", a)
	case a.Is6() && !v6:
		return fmt.Errorf("%s is an IPv6 address; give it as --public-ipv6", a)
	case a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("other nodes cannot reach address %s; use this node's own", a)
	}
	*to = a
	return nil
}

func setSubnetFile(o *options, v string) error {
	if v == "" {
		return errors.New("empty file name; use one like " + systemPath("/run/flannel/subnet.env"))
	}
	o.SubnetFile = v
	return nil
}

// setHealthzIP sets the address and keeps the port, which is another flag.
func setHealthzIP(o *options, v string) error {
	switch v {
	case "":
		v = "0.0.0.0"
	case "localhost":
		v = "127.0.0.1"
	}
	var a netip.Addr
	if err := setIP(&a, v); err != nil {
		return err
	}
	o.Healthz = netip.AddrPortFrom(a, o.Healthz.Port())
	return nil
}

func setLogFormat(o *options, v string) error {
	if v != "text" && v != "json" {
		return fmt.Errorf("unknown log format %.60q; use text or json", v)
	}
	o.Logging.Format = v
	return nil
}

// setStagger accepts 0, which turns rollouts off. A day is longer than any cluster
// needs, and probably a mistake of the unit.
func setStagger(o *options, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 || d > 24*time.Hour {
		return fmt.Errorf("invalid duration %.60q; use one from 0 to 24h, like 2m", v)
	}
	o.ConfigStagger = d
	return nil
}

// variable returns the value of an environment variable, "" if it is not set.
func variable(environ []string, name string) (value string) {
	for _, e := range environ {
		if n, v, _ := strings.Cut(e, "="); n == name {
			value = v
		}
	}
	return value
}
