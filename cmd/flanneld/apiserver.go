package main

import (
	"errors"
	"io/fs"
	"log/slog"

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
			return cluster.Server
		}
	}
	return ""
}
