// This file logs the requests to etcd, at the debug level.

package etcd

import (
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"flannel/subnet"
)

// logRequest logs a request, or an attempt of one that the client library repeats. req is
// a message of etcd's protocol; nil: there is none, as the stream could not be opened.
func (t *errorTracker) logRequest(method string, req any, began time.Time, err error) {
	if !subnet.TracesRequests(t.log) {
		return
	}
	result := "ok"
	if err != nil {
		result = status.Convert(err).Message()
	}
	subnet.LogRequest(t.log, path.Base(method), objectOf(req), began, result)
}

// objectOf returns the keys of a request, with "*" for a range, or the lease; "" if it
// has neither. It must not return values: a login contains the password.
func objectOf(req any) string {
	switch r := req.(type) {
	case *pb.TxnRequest:
		var keys []string
		for _, op := range r.Success { // the steps of Then; that of Else has the same key
			for _, req := range []interface{ GetKey() []byte }{op.GetRequestPut(), op.GetRequestDeleteRange(), op.GetRequestRange()} {
				if key := req.GetKey(); key != nil {
					keys = append(keys, string(key))
				}
			}
		}
		return strings.Join(keys, " ")
	case *pb.WatchRequest:
		return objectOf(r.GetCreateRequest())
	case *pb.WatchCreateRequest:
		return keysOf(r.GetKey(), r.GetRangeEnd())
	case *pb.RangeRequest:
		return keysOf(r.GetKey(), r.GetRangeEnd())
	case *pb.DeleteRangeRequest:
		return keysOf(r.GetKey(), r.GetRangeEnd())
	case *pb.PutRequest:
		return string(r.GetKey())
	case *pb.LeaseGrantRequest:
		return leaseID(r.GetID())
	case *pb.LeaseRevokeRequest:
		return leaseID(r.GetID())
	case *pb.LeaseKeepAliveRequest:
		return leaseID(r.GetID())
	case *pb.LeaseTimeToLiveRequest:
		return leaseID(r.GetID())
	}
	return ""
}

// keysOf returns a key, with a star if it is the first of a range; of our ranges, the
// first key is the prefix of all.
func keysOf(key, rangeEnd []byte) string {
	if len(rangeEnd) > 0 {
		return string(key) + "*"
	}
	return string(key)
}

// leaseID returns the ID of a lease as etcdctl prints it.
func leaseID(id int64) string { return fmt.Sprintf("lease %x", id) }

// tracedStream logs a request on a stream when its first response arrives. What else a
// watch receives is not the result of a request. dialOptions wrap a stream in one, only
// at the debug level. One goroutine may send while another receives.
type tracedStream struct {
	grpc.ClientStream
	tracker *errorTracker
	method  string // of gRPC

	mu    sync.Mutex // guards the rest
	req   any        // nil: the last request was logged
	began time.Time  // when req was sent
}

// SendMsg implements grpc.ClientStream. It notes the request.
func (s *tracedStream) SendMsg(m any) error {
	s.mu.Lock()
	s.req, s.began = m, time.Now()
	s.mu.Unlock()
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream. The first answer after a request is logged
// with it.
func (s *tracedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.mu.Lock()
	req, began := s.req, s.began
	s.req = nil
	s.mu.Unlock()
	if req != nil {
		s.tracker.logRequest(s.method, req, began, err)
	}
	return err
}
