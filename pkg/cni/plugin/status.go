package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status returns an error if ADD cannot succeed: the subnet file is missing or
// incomplete, flanneld is running but has never completed a sync, the pods' bridge has
// an address of another subnet, or the delegate reports an error. Kubelet shows the error as
// the reason why the node is not ready.
func (p *Plugin) status(args *skel.CmdArgs) error {
	ctx := context.Background()
	c, err := parseConf(args.StdinData)
	if err != nil {
		return err
	}
	subnet, err := readSubnet(c.SubnetFile)
	if err != nil {
		return notAvailable(err, whyNotReady(ctx, c.SubnetFile))
	}
	// Without an answer, the file counts: flannel has no such socket.
	if reason := whyNotReady(ctx, c.SubnetFile); errors.As(reason, new(*neverReadyError)) { // false for nil
		return &types.Error{Code: errLimitedConnectivity, Msg: reason.Error(), Details: "run 'flanneld status' on this node"}
	}
	d, err := newDelegate(c, subnet, p.OS)
	if err != nil {
		return err
	}
	if b := findFormerBridge(d, subnet.former); b != nil {
		return b.err(errNotAvailable, c, d)
	}
	return p.delegateStatus(ctx, d, args)
}

// notAvailable converts an error of readSubnet to code 50, and appends why
// flanneld has not written the file.
func notAvailable(err, reason error) error {
	e := &types.Error{}
	if !errors.As(err, &e) {
		return err
	}
	e.Code = errNotAvailable
	if reason != nil {
		e.Msg += " (" + reason.Error() + ")"
	}
	return e
}

// delegateStatus calls the delegate's STATUS if the delegate supports it.
func (p *Plugin) delegateStatus(ctx context.Context, d delegate, args *skel.CmdArgs) error {
	call := p.newCall("STATUS", args)
	path, err := invoke.FindInPath(d.Type, filepath.SplitList(args.Path))
	if err != nil {
		return cniError(errNotAvailable, "delegate: %w", err)
	}
	supported, err := call.versions(ctx, path)
	if err != nil {
		return cniError(errNotAvailable, "query CNI versions of %s: %w", d.Type, err)
	}
	if !slices.Contains(supported, d.version()) {
		return nil // it does not support STATUS
	}
	_, err = call.run(ctx, d)
	return err
}

// neverReadyError means that flanneld is running and has not completed a sync of
// the network since it started.
type neverReadyError struct{ reason string }

func (e *neverReadyError) Error() string { return "flanneld is not ready: " + e.reason }

// daemonTimeout is the timeout for a request to flanneld, which answers from memory.
const daemonTimeout = time.Second

// maxReason is the maximum number of bytes read from flanneld's answer.
const maxReason = 4 << 10

// whyNotReady queries flanneld at the socket beside the subnet file. It returns nil
// if flanneld has completed a sync, a *neverReadyError if it has not, and another
// error if it does not answer. Upstream flanneld does not have this socket.
func whyNotReady(ctx context.Context, subnetFile string) error {
	socket := socketOf(subnetFile)
	conn, err := (&net.Dialer{Timeout: daemonTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("flanneld does not answer at %s", socket)
	}
	defer conn.Close()                                  //nolint:errcheck // the answer was read
	_ = conn.SetDeadline(time.Now().Add(daemonTimeout)) // fails only if the connection is closed
	if _, err := io.WriteString(conn, "GET /startupz HTTP/1.0\r\nHost: flanneld\r\n\r\n"); err != nil {
		return fmt.Errorf("query flanneld: %w", err)
	}
	answer := bufio.NewReader(io.LimitReader(conn, maxReason))
	line, err := answer.ReadString('\n')
	if err != nil {
		return fmt.Errorf("query flanneld: %w", err)
	}
	if _, status, _ := strings.Cut(line, " "); !strings.HasPrefix(status, "503 ") {
		return nil // has completed a sync, or is too old to have /startupz
	}
	rest, _ := io.ReadAll(answer) // a part of the reason is enough
	_, body, _ := strings.Cut(string(rest), "\r\n\r\n")
	return &neverReadyError{strings.ReplaceAll(strings.TrimSpace(body), "\n", "; ")}
}

// socketOf returns the socket of the flanneld that writes that subnet file. It
// copies status.Socket, because package status imports net/http.
func socketOf(subnetFile string) string {
	dir, name := filepath.Split(subnetFile)
	if name == "subnet.env" {
		name = "flanneld"
	}
	return filepath.Join(dir, name+".sock")
}
