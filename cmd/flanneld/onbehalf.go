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
	nodesPath   = "/cluster/nodes"   // status --cluster: ?selector=, ?timeout=
	examinePath = "/cluster/examine" // the doctor
)

// maxOnBehalf bounds how long the daemon asks for a command. A request ends with its
// client, and a command usually gives up much earlier (--timeout): the bound is for a
// client that does not.
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
	// ask returns what is encoded as the answer; its errors are in that.
	serve := func(path string, ask func(ctx context.Context, query url.Values) any) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			// Otherwise the deadline of status.Serve is in force. A minute is for the answer.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(maxOnBehalf + time.Minute))
			ctx, cancel := context.WithTimeout(r.Context(), maxOnBehalf)
			defer cancel()
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(ask(ctx, r.URL.Query())) // an error means that the client has gone
		})
	}
	serve(nodesPath, func(ctx context.Context, query url.Values) any {
		limit, err := time.ParseDuration(query.Get("timeout"))
		if err != nil || limit <= 0 {
			limit = maxOnBehalf
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		nodes, err := kube.Nodes(ctx, *o.Kube.client(), query.Get("selector"), limit) // a page may take as long as all may
		return nodesAnswer{nodes, problem(err)}
	})
	serve(examinePath, func(ctx context.Context, _ url.Values) any { return o.store().Examine(ctx) })
	mux.Handle("/", others)
	return mux
}

// nodesOnBehalf asks the daemon for the Nodes. limit is the time that the daemon has to
// list them all. The command waits twice as long, so that the daemon's error arrives,
// and an error of its own means that the daemon hangs.
func (o *options) nodesOnBehalf(ctx context.Context, selector string, limit time.Duration) ([]kube.NodeStatus, error) {
	limit = min(limit, maxOnBehalf)
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	var answer nodesAnswer
	query := url.Values{"selector": {selector}, "timeout": {limit.String()}}
	if err := o.askOnBehalf(ctx, nodesPath+"?"+query.Encode(), &answer); err != nil {
		return nil, err
	}
	if answer.Problem != "" {
		return nil, errors.New("the daemon asked the API server for this command: " + answer.Problem)
	}
	return answer.Nodes, nil
}

// clusterOnBehalf returns what the daemon reads. If the daemon has ended, is too old, or
// does not answer in time, it returns what this command reads, whose errors then are in
// the Cluster. Read is Examine for a command: it first compares the kind of the daemon's
// store with that of the command's flags.
func (o *options) clusterOnBehalf(ctx context.Context) doctor.Cluster {
	var daemons doctor.Cluster
	if o.askOnBehalf(ctx, examinePath, &daemons) == nil {
		return daemons
	}
	return o.store().Read(ctx)
}

// askOnBehalf decodes the daemon's answer to a GET of the path.
func (o *options) askOnBehalf(ctx context.Context, path string, answer any) error {
	raw, err := status.Get(ctx, status.Socket(o.SubnetFile), path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, answer); err != nil { // an older one answers "404 page not found", and Get ignores the status
		return fmt.Errorf("the flanneld on this node is too old to ask the API server for a command: %w", err)
	}
	return nil
}
