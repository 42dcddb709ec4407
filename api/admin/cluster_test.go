package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// linked is a node that forwards to others.
type linked struct {
	adminFunc
	id     string
	leader string // of every group
	others map[string]*linked
	log    *slog.Logger
}

func (l *linked) Members(context.Context) ([]schema.MemberStatus, error) {
	return []schema.MemberStatus{{Node: l.id, Self: true}}, nil
}

func (l *linked) TransferLeader(_ context.Context, group uint64, to string) (schema.TransferResult, error) {
	if l.leader != l.id {
		return schema.TransferResult{}, &fault.Error{Code: fault.NotLeader, Op: "test", Msg: "not the leader",
			Key: l.leader}
	}
	return schema.TransferResult{Group: group, From: l.id, Leader: to}, nil
}

func (l *linked) Forward(ctx context.Context, node string, r admin.Request) ([]byte, error) {
	other, known := l.others[node]
	if !known {
		return nil, fault.New(fault.NotFound, "test", "no node "+node)
	}
	return admin.Serve(ctx, admin.NewRemoteHandler(other, other.log), l.id, r)
}

func twoLinked(log *bytes.Buffer) (n1, n2 *linked) {
	all := map[string]*linked{}
	for _, id := range []string{"n1", "n2"} {
		all[id] = &linked{id: id, leader: "n2", others: all, log: slog.New(slog.NewTextHandler(log, nil))}
	}
	return all["n1"], all["n2"]
}

func TestForward_AnswersAsTheOtherNodeDoes(t *testing.T) {
	n1, n2 := twoLinked(&bytes.Buffer{})
	_, want := adminGet(t, n2, admin.MembersPath)
	status, got := adminGet(t, n1, admin.NodePath("n2", admin.MembersPath))
	if status != http.StatusOK || !bytes.Equal(got, want) {
		t.Errorf("%d %s, want %s", status, got, want)
	}
	members, err := admin.Get[[]schema.MemberStatus](t.Context(), n1, "n2", admin.MembersPath)
	if err != nil || len(members) != 1 || members[0].Node != "n2" {
		t.Errorf("%+v %v", members, err)
	}
	status, got = adminGet(t, n1, admin.NodePath("n9", admin.MembersPath))
	if err := fault.Unmarshal(got); status != http.StatusNotFound || !fault.Is(err, fault.NotFound) {
		t.Errorf("unknown node: %d %s", status, got)
	}
}

// A node forwards no backup, restore or removal, and a forwarded request is not forwarded again.
func TestForward_CarriesOnlySafeRequests(t *testing.T) {
	for _, c := range []struct {
		method, path string
		ok           bool
	}{
		{http.MethodGet, admin.StatusPath, true},
		{http.MethodGet, admin.DoctorPath, true},
		{http.MethodGet, admin.ClusterPath, true},
		{http.MethodPost, admin.TransferPath(0), true},
		{http.MethodGet, admin.VotersPath, true},
		{http.MethodPost, admin.VotersPath, false}, // the request has no number
		{http.MethodGet, admin.BackupPath, false},
		{http.MethodPost, admin.BackupPath, false},
		{http.MethodPost, admin.RemovePath, false},
		{http.MethodPost, admin.LeavePath, false},
		{http.MethodGet, admin.NodePath("n1", admin.StatusPath), false},
	} {
		called := false
		h := admin.NewRemoteHandler(adminFunc(func() (schema.NodeStatus, error) {
			called = true
			return schema.NodeStatus{}, nil
		}), slog.New(slog.DiscardHandler))
		_, err := admin.Serve(t.Context(), h, "n1", admin.Request{Method: c.method, Path: c.path, Body: []byte("{}")})
		if (err == nil) != c.ok || called != c.ok {
			t.Errorf("%s %s: called %v, %v", c.method, c.path, called, err)
		}
	}
}

func TestTransfer_GoesToTheLeader(t *testing.T) {
	var log bytes.Buffer
	n1, n2 := twoLinked(&log)
	status, body := adminPost(t, n1, admin.TransferPath(3), `{"to":"n1"}`)
	var r schema.TransferResult
	if err := json.Unmarshal(body, &r); err != nil || status != http.StatusOK || r.From != "n2" || r.Leader != "n1" ||
		r.Group != 3 {
		t.Errorf("%d %s %v", status, body, err)
	}
	if !strings.Contains(log.String(), "from=n1") {
		t.Errorf("the audit log of the leader does not name the other node: %s", log.String())
	}
	n2.leader = "n1" // the two disagree for a moment: the request does not go in circles
	status, body = adminPost(t, n1, admin.TransferPath(3), `{"to":"n1"}`)
	if err := fault.Unmarshal(body); status != http.StatusServiceUnavailable || !fault.Is(err, fault.NotLeader) {
		t.Errorf("%d %s", status, body)
	}
}

func TestCluster_HasNodesThatDoNotAnswer(t *testing.T) {
	w := httptest.NewRecorder()
	n := &clustered{status: schema.NewClusterStatus("n1", []schema.NodeReport{{Member: schema.MemberStatus{Node: "n1"},
		Status: &schema.NodeStatus{}}, {Member: schema.MemberStatus{Node: "n2"}, Error: "connection refused"}})}
	admin.NewHandler(n, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, admin.ClusterPath, nil))
	var s schema.ClusterStatus
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || len(s.Nodes) != 2 || s.Nodes[0].Status == nil ||
		s.Nodes[1].Status != nil || s.Nodes[1].Error != "connection refused" {
		t.Errorf("%s %v", w.Body, err)
	}
}

type clustered struct {
	adminFunc
	status schema.ClusterStatus
}

func (c *clustered) ClusterStatus(context.Context) (schema.ClusterStatus, error) {
	return c.status, nil
}
