package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flannel/internal/test/kubetest"
	"flannel/internal/test/logtest"
)

// What a real server does only after hours: its history no longer reaches back (410, as an answer and in the middle of
// a watch), and it is too busy (429). Also: an event that cannot be decoded.
func TestExpired(t *testing.T) {
	t.Parallel()
	var lists, watches atomic.Int32
	var undecodable atomic.Pointer[time.Time] // when the event was sent
	answer := func(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
		w.Header().Set("Content-Type", protobuf)
		w.WriteHeader(int(code))
		_, _ = w.Write(kubetest.Encode(t, &metav1.Status{Status: "Failure", Code: code, Reason: reason, Message: "no"}, "Status"))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", protobuf)
		if r.URL.Query().Get("limit") != "" { // where the store is now
			_, _ = w.Write(kubetest.Encode(t, &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: "1000"}}, "NodeList"))
			return
		}
		if r.URL.Query().Get("watch") == "" {
			n := lists.Add(1)
			// 150 ms at least after a failure, and 100 ms at least before the third list after a lost position.
			if sent := undecodable.Load(); sent != nil && time.Since(*sent) < 250*time.Millisecond {
				t.Errorf("listed %v after an event that all daemons receive", time.Since(*sent))
			}
			if n == 2 { // the second list comes after the server was too busy for one
				w.Header().Set("Retry-After", "1")
				http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
				return
			}
			list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(100 * n)}}
			for i := range int(n) {
				list.Items = append(list.Items, *kubetest.Sample(i))
			}
			_, _ = w.Write(kubetest.Encode(t, list, "NodeList"))
			return
		}
		switch watches.Add(1) {
		case 1:
			answer(w, http.StatusGone, metav1.StatusReasonExpired)
		case 2:
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(kubetest.Frame(t, "ERROR", kubetest.Encode(t, &metav1.Status{Code: http.StatusGone, Reason: metav1.StatusReasonGone}, "Status")))
		case 3:
			now := time.Now()
			undecodable.Store(&now)
			w.WriteHeader(http.StatusOK)
			_, _ = w.Write(kubetest.Frame(t, "MODIFIED", []byte("{}")))
		default:
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	ctx, cancel := context.WithCancel(t.Context())
	defer s.Close()
	defer cancel()
	n := &member{t: t, logs: &logtest.Log{}}
	m, err := New(ctx, Options{APIURL: s.URL, NodeName: "one", Prefix: prefix, Log: n.logs.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	n.listen(m)
	begin := time.Now()
	go m.Watch(ctx, n.Record) //nolint:errcheck // it ends with the test
	n.Sees("node0 node1 node2 node3 node4")
	if took := time.Since(begin); took < time.Second {
		t.Errorf("came again after %v, although it was asked to wait for a second", took)
	}
	if lists.Load() != 5 || watches.Load() < 3 || n.logs.Count() > 2 {
		t.Errorf("%d lists, %d watches\n%s", lists.Load(), watches.Load(), n.logs)
	}
}
