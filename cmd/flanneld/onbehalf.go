package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"flannel/pkg/doctor"
	"flannel/pkg/status"
	"flannel/subnet/kube"
)

// A daemon in a pod has the credentials of the pod, and the address of the API server,
// which a command on the host has not. It therefore asks the API server on behalf of such
// commands, over its socket, which only root may use.
const (
	nodesPath   = "/cluster/nodes"   // status --cluster: ?selector=, ?timeout= of each page
	examinePath = "/cluster/examine" // the doctor
)

// maxOnBehalf bounds how long a command may let the daemon ask.
const maxOnBehalf = 10 * time.Minute

// nodesAnswer is the answer to nodesPath.
type nodesAnswer struct {
	Nodes   []kube.NodeStatus `json:"nodes"`
	Problem string            `json:"problem,omitempty"`
}

// onBehalf serves these paths if the daemon's leases are in Kubernetes, and passes all
// other requests to others.
func onBehalf(o options, others http.Handler) http.Handler {
	if !o.Kube.On {
		return others
	}
	mux := http.NewServeMux()
	serve := func(path string, ask func(ctx context.Context, query url.Values) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxOnBehalf)) // otherwise the usual one is in force
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(ask(r.Context(), r.URL.Query())) // an error means that the client has gone
		})
	}
	serve(nodesPath, func(ctx context.Context, query url.Values) any {
		perPage, err := time.ParseDuration(query.Get("timeout"))
		if err != nil || perPage <= 0 || perPage > maxOnBehalf {
			perPage = maxOnBehalf
		}
		nodes, err := kube.Nodes(ctx, *o.Kube.client(), query.Get("selector"), perPage)
		return nodesAnswer{nodes, problem(err)}
	})
	serve(examinePath, func(ctx context.Context, _ url.Values) any { return o.store().Examine(ctx) })
	mux.Handle("/", others)
	return mux
}

// nodesOnBehalf asks the daemon for the Nodes.
func (o *options) nodesOnBehalf(ctx context.Context, selector string, perPage time.Duration) ([]kube.NodeStatus, error) {
	var answer nodesAnswer
	query := url.Values{"selector": {selector}, "timeout": {perPage.String()}}
	if err := o.askOnBehalf(ctx, nodesPath+"?"+query.Encode(), &answer); err != nil {
		return nil, err
	}
	if answer.Problem != "" {
		return nil, errors.New("the daemon asked: " + answer.Problem)
	}
	return answer.Nodes, nil
}

// clusterOnBehalf returns what read returns, or, if that lacks the credentials of the
// daemon's pod, what the daemon reads.
func (o *options) clusterOnBehalf(read func(context.Context) (doctor.Cluster, error)) func(context.Context) doctor.Cluster {
	return func(ctx context.Context) doctor.Cluster {
		c, err := read(ctx)
		var daemons doctor.Cluster
		if kube.OutsideOfPod(err) && o.askOnBehalf(ctx, examinePath, &daemons) == nil {
			return daemons
		}
		return c
	}
}

func (o *options) askOnBehalf(ctx context.Context, path string, answer any) error {
	raw, err := status.Get(ctx, status.Socket(o.SubnetFile), path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("the flanneld on this node is too old to ask the API server for a command: %w", err)
	}
	return nil
}
