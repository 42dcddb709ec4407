package cosmosdb_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// account is a fake Cosmos DB account with one container. It implements the part of the REST API that the store uses.
// Tests with it verify the requests of the store and how the store handles answers. They do not verify the behaviour
// of Cosmos DB.
type account struct {
	*httptest.Server
	mu       sync.Mutex
	items    map[string]map[string]any // items by partition and id
	count    int
	leaps    time.Duration
	weak     bool // the default consistency level of the account is Session
	ttl      any  // default time to live of the container; nil = expiry is off
	fault    func(w http.ResponseWriter, r *http.Request) bool
	requests []string
}

// start starts an account that ends with the test.
func start(t testing.TB) *account {
	t.Helper()
	a := &account{items: map[string]map[string]any{}, ttl: -1}
	a.Server = httptest.NewUnstartedServer(a)
	a.Config.ErrorLog = log.New(io.Discard, "", 0) //nolint:forbidigo // connections that end early are no news
	a.StartTLS()
	t.Cleanup(a.Close)
	return a
}

// Now returns the time of the account.
func (a *account) Now() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now()
}

func (a *account) now() time.Time { return time.Now().Add(a.leaps) }

func (a *account) leap(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leaps += d
}

// put stores an item without a request.
func (a *account) put(item map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.items[fmt.Sprint(item["partitionKey"], "\n", item["id"])] = item
}

// fail sets a function that is called for each request about items. If it returns true, it has answered the request.
// nil restores the normal answers.
func (a *account) fail(f func(w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

func (a *account) sent() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

const container = "/dbs/orders/colls/state"

// ServeHTTP implements http.Handler.
func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	fault := a.fault
	a.mu.Unlock()
	path := strings.TrimSuffix(r.URL.Path, "/")
	if strings.HasPrefix(path, container+"/docs") && fault != nil && fault(w, r) {
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	if token, _ := url.QueryUnescape(r.Header.Get("Authorization")); !strings.HasPrefix(token, "type=master&") {
		answer(w, http.StatusUnauthorized, nil)
		return
	}
	region := []map[string]string{{"name": "here", "databaseAccountEndpoint": a.URL}}
	switch {
	case path == "":
		answer(w, http.StatusOK, map[string]any{"writableLocations": region, "readableLocations": region})
	case path == container:
		answer(w, http.StatusOK, map[string]any{"id": "state", "defaultTtl": a.ttl,
			"partitionKey": map[string]any{"paths": []string{"/partitionKey"}, "kind": "Hash"}})
	case strings.HasPrefix(path, container+"/docs"):
		a.requests = append(a.requests, r.Method+" "+strings.TrimPrefix(path, container)+" "+
			r.Header.Get("x-ms-consistency-level")+" "+string(body))
		a.docs(w, r, strings.TrimPrefix(path, container+"/docs"), body)
	default:
		answer(w, http.StatusNotFound, nil)
	}
}

func (a *account) docs(w http.ResponseWriter, r *http.Request, id string, body []byte) {
	level := r.Header.Get("x-ms-consistency-level")
	switch {
	case a.weak && level == "Strong":
		answer(w, http.StatusBadRequest, nil)
		return
	case r.Header.Get("x-ms-documentdb-query") == "True" || strings.Contains(r.Header.Get("Content-Type"), "query"):
		a.query(w, body)
		return
	}
	var keys []string
	if err := json.Unmarshal([]byte(r.Header.Get("x-ms-documentdb-partitionkey")),
		&keys); err != nil || len(keys) != 1 {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	if r.Header.Get("x-ms-cosmos-is-batch-request") != "" {
		a.batch(w, keys[0], body)
		return
	}
	verb := map[string]string{"GET": "Read", "PUT": "Replace", "DELETE": "Delete", "POST": "Create"}[r.Method]
	if strings.EqualFold(r.Header.Get("x-ms-documentdb-is-upsert"), "true") {
		verb = "Upsert"
	}
	code, item := a.carryOut(a.items, keys[0], operation{Type: verb, ID: strings.TrimPrefix(id, "/"),
		IfMatch: r.Header.Get("If-Match"), Item: body})
	if item != nil {
		w.Header().Set("Etag", item["_etag"].(string))
	}
	answer(w, code, item)
}

// operation is one operation of a batch, or a single request.
type operation struct {
	Type    string          `json:"operationType"`
	ID      string          `json:"id"`
	IfMatch string          `json:"ifMatch"`
	Item    json.RawMessage `json:"resourceBody"`
}

// carryOut executes an operation. The caller holds the lock.
func (a *account) carryOut(items map[string]map[string]any, partition string, o operation) (int, map[string]any) {
	var next map[string]any
	if len(o.Item) > 0 {
		if json.Unmarshal(o.Item, &next) != nil || next["partitionKey"] != partition {
			return http.StatusBadRequest, nil
		}
		if o.Type != "Replace" {
			o.ID = next["id"].(string)
		}
	}
	if strings.ContainsAny(o.ID, `/\?#`) || o.ID == "" || len(o.ID) > 1023 {
		return http.StatusBadRequest, nil
	}
	place := partition + "\n" + o.ID
	now, exists := a.alive(items[place])
	switch {
	case o.Type == "Create" && exists:
		return http.StatusConflict, nil
	case !exists && slices.Contains([]string{"Read", "Replace", "Delete"}, o.Type):
		return http.StatusNotFound, nil
	case exists && o.IfMatch != "" && o.IfMatch != "*" && o.IfMatch != now["_etag"]:
		return http.StatusPreconditionFailed, nil
	case o.Type == "Read":
		return http.StatusOK, now
	case o.Type == "Delete":
		delete(items, place)
		return http.StatusNoContent, nil
	}
	a.count++
	next["_etag"], next["_ts"] = fmt.Sprintf(`"%08x-0000"`, a.count), a.now().Unix()
	items[place] = next
	return map[bool]int{true: http.StatusOK, false: http.StatusCreated}[exists], next
}

// alive returns item and true, if the item exists and has not expired.
func (a *account) alive(item map[string]any) (map[string]any, bool) {
	if item == nil {
		return nil, false
	}
	if ttl, ok := item["ttl"].(float64); ok && item["_ts"].(int64)+int64(ttl) <= a.now().Unix() {
		return nil, false
	}
	return item, true
}

func (a *account) batch(w http.ResponseWriter, partition string, body []byte) {
	var ops []operation
	if json.Unmarshal(body, &ops) != nil || len(ops) > 100 {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	items := maps.Clone(a.items)
	results := make([]map[string]any, len(ops))
	for i := range ops {
		results[i] = map[string]any{"statusCode": http.StatusFailedDependency}
	}
	for i, o := range ops {
		code, item := a.carryOut(items, partition, o)
		results[i]["statusCode"] = code
		if code >= http.StatusBadRequest {
			for j := range i {
				results[j] = map[string]any{"statusCode": http.StatusFailedDependency}
			}
			answer(w, http.StatusMultiStatus, results)
			return
		}
		if item != nil {
			results[i]["eTag"] = item["_etag"]
		}
	}
	a.items = items
	answer(w, http.StatusOK, results)
}

// query answers the queries that the store sends.
func (a *account) query(w http.ResponseWriter, body []byte) {
	var q struct {
		Query      string `json:"query"`
		Parameters []struct {
			Value any `json:"value"`
		} `json:"parameters"`
	}
	if json.Unmarshal(body, &q) != nil {
		answer(w, http.StatusBadRequest, nil)
		return
	}
	fields, filter, _ := strings.Cut(strings.TrimPrefix(q.Query, "SELECT "), " FROM c WHERE ")
	var matches func(id string) bool
	switch filter {
	case "ARRAY_CONTAINS(@keys, c.id)":
		matches = func(id string) bool { return slices.Contains(q.Parameters[0].Value.([]any), any(id)) }
	case "STARTSWITH(c.id, @prefix)":
		matches = func(id string) bool { return strings.HasPrefix(id, q.Parameters[0].Value.(string)) }
	default:
		answer(w, http.StatusBadRequest, nil)
		return
	}
	found := []any{}
	for _, item := range a.items {
		item, ok := a.alive(item)
		if !ok || !matches(item["id"].(string)) {
			continue
		}
		if fields != "*" {
			all := item
			item = map[string]any{}
			for field := range strings.SplitSeq(fields, ", ") {
				if name := strings.TrimPrefix(field, "c."); all[name] != nil { // an undefined field is left out
					item[name] = all[name]
				}
			}
		}
		found = append(found, item)
	}
	answer(w, http.StatusOK, map[string]any{"Documents": found, "_count": len(found)})
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if body != nil && code != http.StatusNoContent {
		_ = json.NewEncoder(w).Encode(body)
	}
}
