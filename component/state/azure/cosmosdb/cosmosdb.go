// Package cosmosdb implements the component type state.azure.cosmosdb: a state store in a container of Azure Cosmos DB,
// API for NoSQL. The package owns the items and the conversion of responses to fault codes. The client library and its
// connections start goroutines. Close ends them.
//
// An item has the format of Dapr's component. It has the fields id (the stored key), value, isBinary, partitionKey, and
// ttl in seconds. The field value contains JSON, or base64 if isBinary is true. For binary values, Quorate adds the
// field contentType, which Dapr does not have. With this field, the value counts as bytes even if the bytes are valid
// JSON.
package cosmosdb

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/data/azcosmos"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/outside"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
)

// Type is the component type of this store.
const Type = "state.azure.cosmosdb"

// MetadataPartitionKey is the name of the request metadata that sets the partition key. The default is the whole stored
// key. For actor state, the default omits the last part of the stored key, so that all values of an actor are in one
// partition.
const MetadataPartitionKey = "partitionKey"

// Options are the settings of a store.
type Options struct {
	Metadata component.Values // values of Fields
	Identity entra.Settings   // if there is no masterKey; Transport is used in any case
	Logger   *slog.Logger
	Now      func() time.Time // nil = time.Now
}

// Store implements state.Store and all optional interfaces except state.Watcher.
type Store struct {
	client    *azcosmos.Client
	container *azcosmos.ContainerClient
	settings  settings
	identity  *entra.Credential // nil with a masterKey
	transport http.RoundTripper
	now       func() time.Time
	strong    bool // the account can answer at the level Strong
	expires   bool // the container has time to live switched on
	gate      outside.Gate
	listing   *outside.Listing
}

// Open connects to Cosmos DB and checks that the container exists. If Cosmos DB cannot be reached, Open retries until
// the deadline of ctx. It returns these errors:
//
//   - fault.Invalid for wrong settings
//   - fault.Denied for refused credentials
//   - fault.Unavailable if Cosmos DB does not answer
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{settings: read(o.Metadata), now: o.Now, transport: o.Identity.Transport}
	s.listing = outside.NewListing(unordered{s})
	if s.now == nil {
		s.now = time.Now
	}
	o.Identity.Transport = rest.Limit(s.transport)
	if err := s.connect(o.Identity); err != nil {
		return nil, err
	}
	if err := outside.Wait(ctx, s.probe); err != nil {
		_ = s.Close() // the error of probe is more useful
		return nil, err
	}
	if !s.expires {
		o.Logger.Info("the container has no time to live: values with a TTL are refused", "hint", ttlHint)
	}
	return s, nil
}

// connect creates the client. It sends no requests.
func (s *Store) connect(identity entra.Settings) error {
	base, err := identity.Options()
	if err != nil {
		return err
	}
	// The libraries must not repeat a write, so that an error tells whether the write may have been applied.
	base.Retry.MaxRetries = -1
	options := &azcosmos.ClientOptions{ClientOptions: base}
	if s.settings.masterKey != "" {
		key, err := azcosmos.NewKeyCredential(s.settings.masterKey)
		if err != nil {
			return invalid("masterKey is not base64", "copy one of the keys of the account")
		}
		s.client, err = azcosmos.NewClientWithKey(s.settings.url, key, options)
		if err != nil {
			return invalid("the client of Cosmos DB cannot be made", "correct url")
		}
	} else {
		if s.identity, err = identity.Credential(); err != nil {
			return err
		}
		if s.client, err = azcosmos.NewClient(s.settings.url, s.identity, options); err != nil {
			return invalid("the client of Cosmos DB cannot be made", "correct url")
		}
	}
	s.container, err = s.client.NewContainer(s.settings.database, s.settings.collection)
	if err != nil {
		return invalid("database or collection is not valid", "correct them")
	}
	return nil
}

// probe checks that the container exists and has the right partition key. It records whether the container supports
// TTLs and whether the account supports strong reads.
func (s *Store) probe(ctx context.Context) error {
	const op = "cosmosdb.Open"
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	container, err := s.container.Read(bounded, nil)
	if status(err) == http.StatusNotFound {
		return &fault.Error{Code: fault.Invalid, Op: op, Msg: "the database or the container does not exist in " +
			s.settings.where(), Hint: "create both, the container with the partition key /partitionKey"}
	}
	if err != nil {
		return s.failed(ctx, op, "", err, reading)
	}
	if p := container.ContainerProperties; p != nil {
		s.expires = p.DefaultTimeToLive != nil
		if paths := p.PartitionKeyDefinition.Paths; len(paths) != 1 || paths[0] != "/partitionKey" {
			return invalid("the partition key of the container is "+strings.Join(paths, ", ")+", not /partitionKey",
				"create a container with the partition key /partitionKey")
		}
	}
	level := azcosmos.ConsistencyLevelStrong
	_, err = s.container.ReadItem(bounded, azcosmos.NewPartitionKeyString("quorate"), "quorate",
		&azcosmos.ItemOptions{ConsistencyLevel: &level})
	switch status(err) {
	case http.StatusOK, http.StatusNotFound:
		s.strong = true
	case http.StatusBadRequest: // the account has a weaker default, and a request cannot raise it
	default:
		return s.failed(ctx, op, "", err, reading)
	}
	return nil
}

// Ping implements state.Pinger. It reads the properties of the container.
func (s *Store) Ping(ctx context.Context) error {
	const op = "cosmosdb.Ping"
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := s.container.Read(bounded, nil); err != nil {
		return s.failed(ctx, op, "", err, reading)
	}
	return nil
}

// PingInterval implements state.Pinger. It returns 0, so the server is pinged only after a failed call. Regular pings
// would cost money, because Cosmos DB charges for each request.
func (s *Store) PingInterval() time.Duration { return 0 }

// status returns the HTTP status in err, or 200 if err is nil. It returns 0 if there was no answer.
func status(err error) int {
	if err == nil {
		return http.StatusOK
	}
	var answer *azcore.ResponseError
	if errors.As(err, &answer) {
		return answer.StatusCode
	}
	return 0
}

// Close implements state.Store.
func (s *Store) Close() error {
	if s.gate.Close() {
		s.listing.Close()
		s.client.Close()
		s.identity.Close()
		if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
			t.CloseIdleConnections()
		}
	}
	return nil
}

// Features implements state.Featurer.
func (s *Store) Features() []state.Feature {
	all := []state.Feature{state.FeatureETag, state.FeatureTransactional}
	if s.expires {
		all = append(all, state.FeatureTTL)
	}
	return all
}

// proof returns the proof for a read of one item, or for a write, at a consistency level.
func (s *Store) proof(level state.Consistency) state.Proof {
	if level == state.Strong && s.strong {
		return state.Proof{Level: state.Linearizable}
	}
	return state.Proof{Level: state.Stale}
}

// level returns the consistency level for a read; nil means the default of the account.
func (s *Store) level(asked state.Consistency) *azcosmos.ConsistencyLevel {
	switch {
	case asked != state.Strong:
		return azcosmos.ConsistencyLevelEventual.ToPtr()
	case s.strong:
		return azcosmos.ConsistencyLevelStrong.ToPtr()
	}
	return nil
}

// partition returns the partition key for a stored key, as Dapr does. It uses the first of these rules that applies:
//
//   - the partition key in the request metadata
//   - app||type||id, if the key has the form app||type||id||name of actor state
//   - the whole stored key
func partition(key string, metadata map[string]string) string {
	for name, value := range metadata {
		if strings.EqualFold(name, MetadataPartitionKey) {
			return value
		}
	}
	if strings.Count(key, state.Separator) >= 3 {
		return key[:strings.LastIndex(key, state.Separator)]
	}
	return key
}
