// Command netpol enforces NetworkPolicies on the node that it runs on, by kube-router's controller
// and nothing else of it. Until the first policy exists it only waits for one: every pod that comes
// or goes costs it a run of iptables-restore.
package main

import (
	"context"
	"flag"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "name of the node that this process runs on")
	services := flag.String("services", "", "addresses of Services, as a CIDR")
	flag.Parse()
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()

	restConfig, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Exit(err)
	}
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		klog.Exit(err)
	}
	waitForPolicy(stop, client)
	if stop.Err() == nil {
		enforce(stop, client, *node, *services)
	}
}

// waitForPolicy returns once there is a NetworkPolicy, or when it is told to stop.
func waitForPolicy(stop context.Context, client kubernetes.Interface) {
	found := make(chan struct{})
	var once sync.Once
	ctx, cancel := context.WithCancel(stop)
	defer cancel()
	factory := informers.NewSharedInformerFactory(client, 0)
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { once.Do(func() { close(found) }) },
	}
	if _, err := policies.AddEventHandler(handler); err != nil {
		klog.Exit(err)
	}
	factory.Start(ctx.Done())
	klog.Info("waiting for the first NetworkPolicy")
	select {
	case <-found:
	case <-stop.Done():
	}
}

func enforce(stop context.Context, client kubernetes.Interface, node, services string) {
	config := options.NewKubeRouterConfig()
	config.ClusterIPCIDRs = []string{services}
	config.EnableIPv4 = true
	config.HostnameOverride = node
	config.IPTablesSyncPeriod = time.Minute

	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods().Informer()
	namespaces := factory.Core().V1().Namespaces().Informer()
	policies := factory.Networking().V1().NetworkPolicies().Informer()
	iptables, ipset, err := netpol.NewIPTablesHandlers(config)
	if err != nil {
		klog.Exit(err)
	}
	controller, err := netpol.NewNetworkPolicyController(
		client, config, pods, policies, namespaces, &sync.Mutex{}, iptables, ipset)
	if err != nil {
		klog.Exit(err)
	}
	factory.Start(stop.Done())
	factory.WaitForCacheSync(stop.Done())
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		pods:       controller.PodEventHandler,
		namespaces: controller.NamespaceEventHandler,
		policies:   controller.NetworkPolicyEventHandler,
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.Exit(err)
		}
	}
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	klog.Infof("enforcing NetworkPolicies on %s", node)
	var running sync.WaitGroup
	running.Add(1)
	go controller.Run(heartbeats, stop.Done(), &running)
	running.Wait()
}
