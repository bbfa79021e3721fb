package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ServiceNetworks returns the networks from which Services get their addresses, for the CNI configuration of a Windows
// node (cni-conf) and the doctor. It reads the ServiceCIDR objects of Kubernetes 1.33 and later, or else kubeadm's
// configuration. flannel's pods have the permission for neither, and a kubelet has that for kubeadm's configuration. The
// error has the reasons of both. What quiet and MaxRetries(0) are for is in requests.go.
func (c *apiClient) ServiceNetworks(ctx context.Context) ([]netip.Prefix, error) {
	networks, err := c.serviceCIDRs(ctx)
	if err == nil {
		return networks, nil
	}
	networks, kubeadmErr := c.kubeadmServiceNetworks(ctx)
	if kubeadmErr == nil {
		return networks, nil
	}
	return nil, fmt.Errorf("read the cluster's service networks: %w", errors.Join(err, kubeadmErr))
}

// serviceCIDRs lists the networks of Services, which Kubernetes has as objects since 1.33.
func (c *apiClient) serviceCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	body, err := raw(c.rest().Get().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").
		SetHeader("Accept", "application/json").MaxRetries(0).Do(quiet(ctx)))
	if err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	var list struct {
		Items []struct {
			Spec struct{ CIDRs []netip.Prefix }
		}
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	var networks []netip.Prefix
	for _, item := range list.Items {
		networks = append(networks, item.Spec.CIDRs...)
	}
	if len(networks) == 0 {
		return nil, errors.New("list ServiceCIDRs: none found")
	}
	return networks, nil
}

// serviceSubnet matches a line of kubeadm's ClusterConfiguration. kubeadm always writes the value on one line.
var serviceSubnet = regexp.MustCompile(`(?m)^\s+serviceSubnet:\s*["']?([^"'\s]+)["']?\s*$`)

// kubeadmServiceNetworks reads the networks from the ConfigMap in which kubeadm keeps its configuration: one, or one of
// each address family.
func (c *apiClient) kubeadmServiceNetworks(ctx context.Context) ([]netip.Prefix, error) {
	data, err := c.ConfigMap(ctx, "kube-system", "kubeadm-config")
	if err != nil {
		return nil, err
	}
	found := serviceSubnet.FindStringSubmatch(data["ClusterConfiguration"])
	if found == nil {
		return nil, errors.New("the ConfigMap kubeadm-config has no serviceSubnet")
	}
	var networks []netip.Prefix
	for text := range strings.SplitSeq(found[1], ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the ConfigMap kubeadm-config: serviceSubnet: %w", err)
		}
		networks = append(networks, p.Masked())
	}
	return networks, nil
}

// ConfigMap returns the content of a ConfigMap.
func (c *apiClient) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	var configMap corev1.ConfigMap
	err := c.rest().Get().Namespace(namespace).Resource("configmaps").Name(name).MaxRetries(0).Do(quiet(ctx)).Into(&configMap)
	if err != nil {
		return nil, fmt.Errorf("read the ConfigMap %s/%s: %w", namespace, name, err)
	}
	return configMap.Data, nil
}
