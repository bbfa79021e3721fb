package main

import (
	"errors"
	"io/fs"
	"log/slog"

	"k8s.io/client-go/tools/clientcmd"
)

func setAPIFrom(o *options, v string) error {
	if v != "" {
		o.Kube.APIFrom = append(o.Kube.APIFrom, v)
	}
	return nil
}

// apiServer is the URL of the API server where that is known other than by the credentials: a pod knows it by the
// address of a Service, which does not work before kube-proxy, and on Windows kube-proxy waits for our network.
func apiServer(o kubeOptions, log *slog.Logger) string {
	if o.APIURL != "" {
		return o.APIURL
	}
	for _, path := range o.APIFrom {
		c, err := clientcmd.LoadFromFile(path)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				log.Warn("cannot take the API server's address from a kubeconfig", "path", path, "error", err)
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
