package loader

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// Plan lists the components and other documents that a node must load. It is made from the files alone, before any
// component is opened. It is immutable.
type Plan struct {
	// Warnings are problems that do not stop a start.
	Warnings []component.Problem

	documents      map[component.Kind][]component.Document
	secrets        []*unit
	state          []*unit
	bindings       []*unit
	filters        []*unit // middleware components
	endpoints      []component.HTTPEndpoint
	subscriptions  []component.Subscription
	locks          []*unit
	configurations []*unit
	pubsubs        []*unit
	rejected       []component.Status // components that will not be opened
}

// Documents returns the documents of a kind that apply to this node, like Set.Documents.
func (p *Plan) Documents(kind component.Kind) []component.Document {
	return slices.Clone(p.documents[kind])
}

// Subscriptions returns the Subscription documents that apply to this node. Set.Subscriptions returns the same
// documents after the components are open.
func (p *Plan) Subscriptions() []component.Subscription { return slices.Clone(p.subscriptions) }

// report logs the warnings, and why invalid components with ignoreErrors are not opened.
func (p *Plan) report(log *slog.Logger) {
	for _, w := range p.Warnings {
		log.Warn("component files: " + w.String())
	}
	for _, c := range p.rejected {
		if c.State == component.Failed {
			log.Error("component failed; it is not served, because it has ignoreErrors: true", "component", c.Name,
				"type", c.Type, "error", c.Reason)
		}
	}
}

// Read reads the files and checks everything that can be checked before a component is opened. Its error lists the
// problems of all files, and is the error that Open would return. After an error, the plan may be nil. If it is not
// nil, only its Warnings are valid.
func Read(o Options) (*Plan, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	documents, warnings, err := readDocuments(o)
	if fault.Is(err, fault.NotFound) {
		return nil, err
	}
	b, broken := newPlanner(o)
	if broken != nil {
		return nil, broken
	}
	b.plan.Warnings = warnings
	errs := parts(err)
	for _, doc := range documents {
		if o.wants(doc) {
			errs = append(errs, parts(b.add(doc))...)
		}
	}
	if err == nil { // if a file could not be read, a missing name proves nothing
		errs = append(errs, b.applyScopes()...)
		errs = append(errs, b.plan.checkSecretStores()...)
	}
	if b.wantsDefault() {
		errs = append(errs, parts(b.addDefault(*o.DefaultState))...)
	}
	if len(b.plan.locks) == 0 && !b.locksFailed && o.DefaultLocks != nil {
		errs = append(errs, parts(b.addComponent(withDefaults(*o.DefaultLocks)))...)
	}
	if len(b.plan.configurations) == 0 && !b.configurationFailed && o.DefaultConfiguration != nil {
		errs = append(errs, parts(b.addComponent(withDefaults(*o.DefaultConfiguration)))...)
	}
	if o.DefaultPubSub != nil {
		if _, taken := b.seen[component.KindComponent][o.DefaultPubSub.Name]; !taken {
			errs = append(errs, parts(b.addComponent(withDefaults(*o.DefaultPubSub)))...)
		}
	}
	errs = append(errs, parts(o.onlyOneActorStore(b.plan.state))...)
	return b.plan, join("loader.Read", errs)
}

// checkSecretStores returns an error for each component and endpoint that refers to an undeclared secret store. It
// ignores components that set ignoreErrors, and references to declared stores that will not be opened. Open handles
// both.
func (p *Plan) checkSecretStores() (errs []error) {
	find := func(name string) error {
		declared := func(u *unit) bool { return u.spec.Name == name }
		if slices.ContainsFunc(p.secrets, declared) ||
			slices.ContainsFunc(p.rejected, func(c component.Status) bool { return c.Name == name }) {
			return nil
		}
		names := make([]string, len(p.secrets))
		for i, u := range p.secrets {
			names[i] = u.spec.Name
		}
		return undeclaredSecretStore(name, names)
	}
	for _, units := range [][]*unit{p.secrets, p.state, p.bindings, p.filters, p.locks, p.configurations, p.pubsubs} {
		for _, u := range units {
			if err := u.spec.CheckSecretStore(find); err != nil && !u.spec.IgnoreErrors {
				errs = append(errs, err)
			}
		}
	}
	for _, e := range p.endpoints {
		if err := e.CheckSecretStore(find); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// wantsDefault reports whether to open the default state store.
func (b *planner) wantsDefault() bool {
	o := b.options
	if o.DefaultState == nil {
		return false
	}
	if o.keepDefault {
		return !slices.ContainsFunc(b.plan.state, func(u *unit) bool { return u.spec.Name == o.DefaultState.Name })
	}
	return len(b.plan.state) == 0 && !b.stateFailed
}

// readDocuments reads the files in Options.Paths, and then the Configuration documents of the files in
// Options.ConfigFiles. The order matters, because a later Configuration takes precedence over an earlier one.
//
// A file may be in both lists. Its Configuration documents are then read only as part of ConfigFiles, and its other
// documents only as part of Paths.
func readDocuments(o Options) ([]component.Document, []component.Problem, error) {
	once, configs := &distinct{}, &distinct{}
	repeated := func(path string) bool { return !configs.first(path) }
	configFiles := slices.DeleteFunc(slices.Clone(o.ConfigFiles), repeated)
	files, warnings, err := findFiles(o.Paths, once)
	if err != nil {
		return nil, nil, err
	}
	var documents []component.Document
	var errs []error
	for _, path := range files {
		file, err := parseFile(path)
		if err != nil {
			errs = append(errs, err)
		}
		if configs.contains(path) {
			file.Documents = slices.DeleteFunc(file.Documents, isConfiguration)
		}
		documents = append(documents, file.Documents...)
		warnings = append(warnings, file.Skipped...)
	}
	for _, path := range configFiles {
		file, err := parseFile(path)
		configurations, odd := onlyConfigurations(file)
		for i := range configurations {
			warnings = append(warnings, configurations[i].ExpandEnv(o.Env)...)
		}
		documents = append(documents, configurations...)
		if once.contains(path) {
			continue // Paths has its errors and its other documents
		}
		if err != nil {
			errs = append(errs, err)
		}
		warnings = append(warnings, odd...)
	}
	return documents, warnings, join("loader.Read", errs)
}

// onlyConfigurations returns the Configuration documents of a file in Options.ConfigFiles, and a warning for each
// document of another kind, which is skipped.
func onlyConfigurations(file component.File) (out []component.Document, warnings []component.Problem) {
	for _, doc := range file.Documents {
		if isConfiguration(doc) {
			out = append(out, doc)
			continue
		}
		warnings = append(warnings, component.Problem{Pos: doc.Pos,
			Text: "skipped: a document of kind " + string(doc.Kind) + " in a file for configurations",
			Hint: "name its folder with --resources-path"})
	}
	return out, append(warnings, file.Skipped...)
}

func isConfiguration(doc component.Document) bool { return doc.Kind == component.KindConfiguration }

// planner builds a Plan.
type planner struct {
	options             Options
	plan                *Plan
	stateTypes          component.Registry[StateFactory]
	secretTypes         component.Registry[SecretStoreFactory]
	bindingTypes        component.Registry[BindingFactory]
	filterTypes         component.Registry[MiddlewareFactory]
	lockTypes           component.Registry[LockFactory]
	configurationTypes  component.Registry[ConfigurationFactory]
	pubsubTypes         component.Registry[PubSubFactory]
	seen                map[component.Kind]map[string]component.Pos
	scopes              []component.SecretScope
	stateFailed         bool // a state component with ignoreErrors is invalid
	locksFailed         bool // a lock component with ignoreErrors is invalid
	configurationFailed bool // a configuration component with ignoreErrors is invalid
}

func newPlanner(o Options) (*planner, error) {
	stateTypes, err := component.NewRegistry(o.Factories.State)
	if err != nil {
		return nil, err
	}
	secretTypes, err := component.NewRegistry(o.Factories.SecretStores)
	if err != nil {
		return nil, err
	}
	bindingTypes, err := component.NewRegistry(o.Factories.Bindings)
	if err != nil {
		return nil, err
	}
	filterTypes, err := component.NewRegistry(o.Factories.Middleware)
	if err != nil {
		return nil, err
	}
	lockTypes, err := component.NewRegistry(o.Factories.Locks)
	if err != nil {
		return nil, err
	}
	configurationTypes, err := component.NewRegistry(o.Factories.Configuration)
	if err != nil {
		return nil, err
	}
	pubsubTypes, err := component.NewRegistry(o.Factories.PubSub)
	if err != nil {
		return nil, err
	}
	return &planner{
		options: o, stateTypes: stateTypes, secretTypes: secretTypes, bindingTypes: bindingTypes,
		filterTypes: filterTypes, lockTypes: lockTypes, configurationTypes: configurationTypes,
		pubsubTypes: pubsubTypes,
		plan:        &Plan{documents: map[component.Kind][]component.Document{}},
		seen:        map[component.Kind]map[string]component.Pos{},
	}, nil
}

// add adds one document to the plan if the namespace and the scopes match this node.
func (b *planner) add(doc component.Document) error {
	if reason := b.foreign(doc); reason != "" {
		if doc.Component != nil {
			b.plan.rejected = append(b.plan.rejected, statusOf(doc.Component, component.Ignored, reason))
		}
		return nil
	}
	if err := b.unique(doc); err != nil {
		return err
	}
	b.plan.documents[doc.Kind] = append(b.plan.documents[doc.Kind], doc)
	switch {
	case doc.Kind == component.KindConfiguration:
		return b.addScopes(doc)
	case doc.Kind == component.KindHTTPEndpoint:
		e, err := component.ParseHTTPEndpoint(doc)
		b.plan.endpoints = append(b.plan.endpoints, e)
		return err
	case doc.Kind == component.KindSubscription:
		s, err := component.ParseSubscription(doc)
		b.plan.subscriptions = append(b.plan.subscriptions, s)
		return err
	case doc.Component == nil:
		return nil
	}
	err := doc.Err
	if err == nil {
		err = b.addComponent(doc.Component)
	}
	return b.tolerate(doc.Component, err)
}

// wants reports whether a document must be loaded. If Options.onlyState is set, only the state store with this name
// and the secret stores are loaded. Otherwise all documents are loaded.
func (o Options) wants(doc component.Document) bool {
	if o.onlyState == "" {
		return true
	}
	if doc.Component == nil {
		return false
	}
	block := blockOf(doc.Component.Type)
	_, known := blockNames()[block] // the type of the store may be mistyped, which is an error
	return block == blockSecrets || doc.Name == o.onlyState && (block == blockState || !known)
}

func (b *planner) foreign(doc component.Document) string {
	switch {
	case !doc.InNamespace(b.options.Namespace):
		return fmt.Sprintf("it belongs to namespace %s, this node to %s", doc.Namespace, b.options.Namespace)
	case !doc.InScope(b.options.Apps):
		return "its scopes are " + strings.Join(doc.Scopes, ", ")
	}
	return ""
}

// unique returns an error if an earlier document of the same kind has the same name. Two kinds are exempt:
// Configuration documents are merged, and the names of subscriptions are not used.
func (b *planner) unique(doc component.Document) error {
	if doc.Kind == component.KindConfiguration || doc.Kind == component.KindSubscription {
		return nil
	}
	names := b.seen[doc.Kind]
	if names == nil {
		names = map[string]component.Pos{}
		b.seen[doc.Kind] = names
	}
	if first, ok := names[doc.Name]; ok {
		return &fault.Error{Code: fault.Invalid, Op: "loader.Read", Key: doc.Name,
			Msg:  fmt.Sprintf("%s: the %s %q is declared twice; first at %s", doc.Pos, doc.Kind, doc.Name, first),
			Hint: "rename or remove one, or give them different scopes"}
	}
	names[doc.Name] = doc.Pos
	return nil
}

// tolerate handles an error of a component. If the component sets ignoreErrors, tolerate records the error as the
// status of the component and returns nil. Otherwise it returns err.
func (b *planner) tolerate(spec *component.Spec, err error) error {
	if err == nil || !spec.IgnoreErrors {
		return err
	}
	b.stateFailed = b.stateFailed || blockOf(spec.Type) == blockState
	b.locksFailed = b.locksFailed || blockOf(spec.Type) == blockLocks
	b.configurationFailed = b.configurationFailed || blockOf(spec.Type) == blockConfiguration
	b.plan.rejected = append(b.plan.rejected, statusOf(spec, component.Failed, fault.Text(err)))
	return nil
}

// The building blocks, by the first part of their types.
const (
	blockState         = "state"
	blockSecrets       = "secretstores"
	blockBindings      = "bindings"
	blockFilters       = "middleware"
	blockLocks         = "lock"
	blockConfiguration = "configuration"
	blockPubSub        = "pubsub"
)

func blockOf(typ string) string {
	block, _, _ := strings.Cut(strings.ToLower(typ), ".")
	return block
}

func (b *planner) addComponent(spec *component.Spec) error {
	u, err := b.unit(spec)
	if err != nil {
		return err
	}
	warnings, err := u.check(spec.Unresolved())
	b.plan.Warnings = append(b.plan.Warnings, warnings...)
	if err != nil {
		return err
	}
	switch blockOf(spec.Type) {
	case blockSecrets:
		b.plan.secrets = append(b.plan.secrets, u)
	case blockBindings:
		b.plan.bindings = append(b.plan.bindings, u)
	case blockFilters:
		b.plan.filters = append(b.plan.filters, u)
	case blockLocks:
		b.plan.locks = append(b.plan.locks, u)
	case blockConfiguration:
		b.plan.configurations = append(b.plan.configurations, u)
	case blockPubSub:
		b.plan.pubsubs = append(b.plan.pubsubs, u)
	default:
		b.plan.state = append(b.plan.state, u)
	}
	return nil
}

// addDefault adds the default state store to the plan. This store has the actor state.
func (b *planner) addDefault(spec component.Spec) error {
	if err := b.addComponent(withDefaults(spec)); err != nil {
		return err
	}
	b.plan.state[len(b.plan.state)-1].actor = true
	return nil
}

// withDefaults returns a copy of spec in which an unset InitTimeout or Version has its default.
func withDefaults(spec component.Spec) *component.Spec {
	if spec.InitTimeout == 0 {
		spec.InitTimeout = component.DefaultInitTimeout
	}
	if spec.Version == "" {
		spec.Version = component.DefaultVersion
	}
	return &spec
}

// unit returns a unit for the component, with the factory and the metadata fields of its type. It returns an error if
// the type is unknown.
func (b *planner) unit(spec *component.Spec) (*unit, error) {
	u := &unit{spec: spec}
	var err error
	switch blockOf(spec.Type) {
	case blockState:
		u.state, err = b.stateTypes.Find(spec.Type, spec.Version)
		u.outside = !b.stateTypes.Has(spec.Type, spec.Version)
		u.fields = append(StateFields(), u.state.Fields...)
	case blockSecrets:
		u.secrets, err = b.secretTypes.Find(spec.Type, spec.Version)
		u.outside = !b.secretTypes.Has(spec.Type, spec.Version)
		u.fields = u.secrets.Fields
	case blockBindings:
		u.binding, err = b.bindingTypes.Find(spec.Type, spec.Version)
		u.outside = !b.bindingTypes.Has(spec.Type, spec.Version)
		u.fields = append(BindingFields(), u.binding.Fields...)
	case blockFilters:
		u.filter, err = b.filterTypes.Find(spec.Type, spec.Version)
		u.outside = !b.filterTypes.Has(spec.Type, spec.Version)
		u.fields = u.filter.Fields
	case blockLocks:
		u.lock, err = b.lockTypes.Find(spec.Type, spec.Version)
		u.outside = !b.lockTypes.Has(spec.Type, spec.Version)
		u.fields = append(LockFields(), u.lock.Fields...)
	case blockConfiguration:
		u.configuration, err = b.configurationTypes.Find(spec.Type, spec.Version)
		u.outside = !b.configurationTypes.Has(spec.Type, spec.Version)
		u.fields = u.configuration.Fields
	case blockPubSub:
		u.pubsub, err = b.pubsubTypes.Find(spec.Type, spec.Version)
		u.outside = !b.pubsubTypes.Has(spec.Type, spec.Version)
		u.fields = append(PubSubFields(), u.pubsub.Fields...)
	default:
		err = unknownBlock(spec)
	}
	if err != nil {
		return nil, u.failed(spec.TypePos, explain(spec, err))
	}
	return u, nil
}

// onlyOneActorStore returns an error if more than one state store is configured to hold the actor state. It must be
// called before and after references are resolved, because the setting can come from a reference.
//
// In a reload where a store already has the actor state, it returns nil, and movesActors checks each store instead.
func (o Options) onlyOneActorStore(units []*unit) error {
	if o.actors != nil {
		return nil
	}
	var first *unit
	for _, u := range units {
		switch {
		case !u.claimsActors():
		case first == nil:
			first = u
		default:
			return &fault.Error{Code: fault.Invalid, Op: "loader.Read", Key: u.spec.Name,
				Msg: fmt.Sprintf("the state stores %q (%s) and %q (%s) both say %s: \"true\"",
					first.spec.Name, first.spec.Pos, u.spec.Name, u.spec.Pos, state.MetadataActorStateStore),
				Hint: "actors use one store; remove it from the others"}
		}
	}
	return nil
}
