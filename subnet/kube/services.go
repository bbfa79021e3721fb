package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ServiceNetworks asks the API server from which networks Services get their addresses: the ServiceCIDR objects of
// Kubernetes 1.33 and later, else what kubeadm wrote down. Of o it takes what says how to reach the API server; the
// rights of flannel's own pods do not suffice, those of kubelets do for kubeadm's.
func ServiceNetworks(ctx context.Context, o Options) ([]netip.Prefix, error) {
	m := &Manager{o: o}
	var err error
	if m.api, m.wire, err = o.dial(); err != nil {
		return nil, err
	}
	defer m.wire.current().CloseIdleConnections()
	networks, err := m.serviceCIDRs(ctx)
	if err == nil {
		return networks, nil
	}
	networks, kubeadmErr := m.kubeadmServices(ctx)
	if kubeadmErr == nil {
		return networks, nil
	}
	return nil, fmt.Errorf("ask the cluster for its service network: %w", errors.Join(err, kubeadmErr))
}

func (m *Manager) serviceCIDRs(ctx context.Context) ([]netip.Prefix, error) {
	answer := m.api.Get().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").SetHeader("Accept", "application/json").MaxRetries(0).Do(quiet(ctx))
	raw, err := answer.Raw()
	if err = cmp.Or(answer.Error(), err); err != nil { // Raw's own error lacks what the server says
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	var list struct {
		Items []struct {
			Spec struct{ CIDRs []netip.Prefix }
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	var all []netip.Prefix
	for _, one := range list.Items {
		all = append(all, one.Spec.CIDRs...)
	}
	if len(all) == 0 {
		return nil, errors.New("list ServiceCIDRs: there is none")
	}
	return all, nil
}

// serviceSubnet finds the line in kubeadm's ClusterConfiguration, which kubeadm itself wrote: always one line.
var serviceSubnet = regexp.MustCompile(`(?m)^\s+serviceSubnet:\s*["']?([^"'\s]+)["']?\s*$`)

func (m *Manager) kubeadmServices(ctx context.Context) ([]netip.Prefix, error) {
	var c corev1.ConfigMap
	err := m.api.Get().Namespace("kube-system").Resource("configmaps").Name("kubeadm-config").MaxRetries(0).Do(quiet(ctx)).Into(&c)
	if err != nil {
		return nil, fmt.Errorf("read the ConfigMap kubeadm-config: %w", err)
	}
	found := serviceSubnet.FindStringSubmatch(c.Data["ClusterConfiguration"])
	if found == nil {
		return nil, errors.New("the ConfigMap kubeadm-config has no serviceSubnet")
	}
	var all []netip.Prefix
	for text := range strings.SplitSeq(found[1], ",") {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("the ConfigMap kubeadm-config: serviceSubnet: %w", err)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
