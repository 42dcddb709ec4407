package admin_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// operated is a node that records its calls.
type operated struct {
	adminFunc
	members []schema.MemberStatus
	group   uint64
	to      string
	asked   bool
}

func (o *operated) Members(context.Context) ([]schema.MemberStatus, error) { return o.members, nil }

func (o *operated) TransferLeader(_ context.Context, group uint64, to string) (schema.TransferResult, error) {
	o.group, o.to, o.asked = group, to, true
	return schema.TransferResult{Group: group, From: "n1", Leader: to}, nil
}

func (o *operated) CompareReplicas(_ context.Context, group uint64) (schema.Comparison, error) {
	return schema.Comparison{Group: group, Index: 9}, nil
}

func adminPost(t *testing.T, a admin.Node, path, body string) (int, []byte) {
	t.Helper()
	w := httptest.NewRecorder()
	admin.NewHandler(a, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return w.Code, w.Body.Bytes()
}

// TestAdminMembers_FieldNamesAreStable checks the JSON names, because programs read them.
func TestAdminMembers_FieldNamesAreStable(t *testing.T) {
	o := &operated{members: []schema.MemberStatus{{Node: "n1", ServerID: "n1.4f", Role: "server", State: "failed",
		Since: time.Unix(1700000000, 0).UTC(),
		Peer:  "127.0.0.1:7947", Gossip: "127.0.0.1:7946", ClusterID: "c1", Version: "v1", Leads: 2, Self: true}}}
	status, body := adminGet(t, o, admin.MembersPath)
	want := `[{"node":"n1","serverId":"n1.4f","role":"server","state":"failed",` +
		`"since":"2023-11-14T22:13:20Z","peer":"127.0.0.1:7947",` +
		`"gossip":"127.0.0.1:7946","clusterId":"c1","version":"v1","leads":2,"self":true}]`
	if diff := cmp.Diff(want, string(body)); diff != "" || status != http.StatusOK {
		t.Errorf("status %d\n%s", status, diff)
	}
	if _, body := adminGet(t, &operated{}, admin.MembersPath); string(body) != "[]" {
		t.Errorf("no members: %s", body)
	}
}

func TestAdminTransfer_PassesGroupAndNode(t *testing.T) {
	o := &operated{}
	status, body := adminPost(t, o, admin.TransferPath(7), `{"to":"n2"}`)
	var got schema.TransferResult
	if err := json.Unmarshal(body, &got); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v %s", status, err, body)
	}
	want := schema.TransferResult{Group: 7, From: "n1", Leader: "n2"}
	if got != want || o.group != 7 || o.to != "n2" {
		t.Errorf("answer %+v, called with %d %q", got, o.group, o.to)
	}
}

func TestAdminTransfer_RefusesInvalidInput(t *testing.T) {
	for name, c := range map[string]struct{ path, body string }{
		"no group":      {"/v1/groups/x/transfer", `{}`},
		"below zero":    {"/v1/groups/-1/transfer", `{}`},
		"no JSON":       {admin.TransferPath(0), `to n2`},
		"unknown field": {admin.TransferPath(0), `{"node":"n2"}`},
		"too large":     {admin.TransferPath(0), `{"to":"` + strings.Repeat("x", 1<<17) + `"}`},
	} {
		o := &operated{}
		status, body := adminPost(t, o, c.path, c.body)
		if err := fault.Unmarshal(body); status != http.StatusBadRequest || !fault.Is(err, fault.Invalid) || o.asked {
			t.Errorf("%s: %d %s, called %v", name, status, body, o.asked)
		}
	}
}

func TestAdminCompare_AnswersForTheGroup(t *testing.T) {
	o := &operated{}
	status, body := adminPost(t, o, admin.ComparePath(5), "")
	if want := `{"group":5,"index":9,"majority":"","replicas":null}`; status != http.StatusOK || string(body) != want {
		t.Errorf("%d %s", status, body)
	}
	if status, _ = adminPost(t, o, "/v1/groups/x/compare", ""); status != http.StatusBadRequest {
		t.Errorf("no group: %d", status)
	}
}
