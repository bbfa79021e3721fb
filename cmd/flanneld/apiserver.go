package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"strings"

	"k8s.io/client-go/tools/clientcmd"
)

// apiServer returns the API server's URL from --kube-api-url or
// --kube-api-from, "" if neither has one. A pod's service account has the
// address of a Service instead, which does not work before kube-proxy runs, and
// on Windows kube-proxy waits for our network.
func apiServer(o kubeOptions, log *slog.Logger) string {
	if o.APIURL != "" {
		return o.APIURL
	}
	for _, path := range o.APIFrom {
		c, err := clientcmd.LoadFromFile(path)
		if err != nil {
			// A file that does not exist is normal: which of them a node has depends on
			// how it joined the cluster.
			if !errors.Is(err, fs.ErrNotExist) {
				log.Warn("cannot read the API server's address from a kubeconfig", "path", path, "error", err)
			}
			continue
		}
		context := c.Contexts[c.CurrentContext]
		if context == nil {
			continue
		}
		if cluster := c.Clusters[context.Cluster]; cluster != nil && cluster.Server != "" {
			if server := withoutUser(cluster.Server); server != "" {
				return server
			}
			log.Warn("cannot parse the API server's address in a kubeconfig", "path", path, "cluster", context.Cluster)
		}
	}
	return ""
}

// withoutUser returns the URL of an API server without a user and password, which are for the
// kubeconfig's own client: others see the URL, for example in flanneld status. It returns "" for a
// URL that cannot be parsed and may have a user. client-go accepts a server without a scheme.
func withoutUser(server string) string {
	if !strings.Contains(server, "@") {
		return server
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" {
		return ""
	}
	u.User = nil
	return u.String()
}
