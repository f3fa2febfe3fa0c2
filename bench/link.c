// SPDX-License-Identifier: Apache-2.0
// link.c - hosts made of network namespaces, with links of a given delay and rate. Needs root.
//
//     link HOSTS DELAY_US MBIT
//
// Creates HOSTS namespaces with the addresses 10.93.0.1, 10.93.0.2, ... and host names of their
// own, prints one line "ADDRESS PID" for each (start a command there with `nsenter --target PID
// --net --uts --mount`), and moves packets between them until its input ends. Every host has one
// interface: what it sends leaves at MBIT Mbit/s (0: no limit) and arrives DELAY_US microseconds
// later.
//
// This is what `tc netem delay ... rate ...` does in kernels that have it. The interfaces are TUN
// devices. Large TCP segments pass unsplit, as they do between the two ends of a veth, but their
// time on the link is that of packets of MTU bytes.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_HOSTS 16
#define MTU       1500
#define OVERHEAD  78                // bytes of a packet on the wire that are not TCP data
#define PACKET    (70 << 10)        // largest unsplit segment, with its header
#define QUEUE     (size_t)(4 << 20) // bytes on their way from one host; then its interface waits

struct packet {
    struct packet *next;
    int64_t arrives; // ns
    size_t bytes;
    char data[];
};

static int tun[MAX_HOSTS]; // by host
static int hosts;
static int64_t delay_ns;
static double ns_per_byte;

static void die(const char *what)
{
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    exit(1);
}

// ---- namespaces ---------------------------------------------------------------------------------

static void set_address(int s, struct ifreq *ifr, unsigned long request, const char *address)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    inet_pton(AF_INET, address, &in.sin_addr);
    memcpy(&ifr->ifr_addr, &in, sizeof in);
    if (ioctl(s, request, ifr) != 0)
        die("set the address of an interface");
}

static void bring_up(int s, struct ifreq *ifr)
{
    if (ioctl(s, SIOCGIFFLAGS, ifr) != 0)
        die("read the flags of an interface");
    ifr->ifr_flags = (short)(ifr->ifr_flags | IFF_UP | IFF_RUNNING);
    if (ioctl(s, SIOCSIFFLAGS, ifr) != 0)
        die("start an interface");
}

// Moves this process to a namespace of its own with one TUN device, and returns the device.
static int make_host(int k)
{
    char address[32], name[32];
    struct ifreq ifr = {0};
    snprintf(address, sizeof address, "10.93.0.%d", k + 1);
    snprintf(name, sizeof name, "host%d", k);
    if (unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) != 0)
        die("make a network namespace (are you root?)");
    // UCX lists the interfaces in /sys/class/net, which shows those of the mount's namespace.
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("sysfs", "/sys", "sysfs", 0, NULL) != 0)
        die("mount /sys");
    if (sethostname(name, strlen(name)) != 0)
        die("set the host name");
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (fd < 0)
        die("/dev/net/tun");
    ifr.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
    snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "link0");
    if (ioctl(fd, TUNSETIFF, &ifr) != 0)
        die("make a TUN device");
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0)
        die("let large segments pass");
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    set_address(s, &ifr, SIOCSIFADDR, address);
    set_address(s, &ifr, SIOCSIFNETMASK, "255.255.255.0");
    ifr.ifr_mtu = MTU;
    if (ioctl(s, SIOCSIFMTU, &ifr) != 0)
        die("set the MTU");
    bring_up(s, &ifr);
    memset(&ifr, 0, sizeof ifr);
    snprintf(ifr.ifr_name, sizeof ifr.ifr_name, "lo");
    bring_up(s, &ifr);
    close(s);
    return fd;
}

static void send_fd(int to, int fd)
{
    char byte = 0;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {0};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
    if (sendmsg(to, &message, 0) != 1)
        die("send a descriptor");
}

static int receive_fd(int from)
{
    char byte;
    int fd;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof fd)];
    } control = {0};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    if (recvmsg(from, &message, 0) != 1)
        exit(1); // the other process has said why
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

// Starts the process that keeps host k's namespace alive.
static pid_t start_host(int k)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0)
        die("socketpair");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pair[0]);
        send_fd(pair[1], make_host(k));
        for (;;)
            pause();
    }
    close(pair[1]);
    tun[k] = receive_fd(pair[0]);
    close(pair[0]);
    return pid;
}

// ---- packets ------------------------------------------------------------------------------------

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Bytes on the wire: an unsplit segment is sent in packets of MTU bytes.
static double wire_bytes(size_t bytes)
{
    return (double)(bytes + (bytes / (MTU - 40) + 1) * OVERHEAD);
}

// The host to which a packet goes; -1: none of ours.
static int host_of(const struct packet *packet)
{
    const unsigned char *ip = (const unsigned char *)packet->data + sizeof(struct virtio_net_hdr);
    if (packet->bytes < sizeof(struct virtio_net_hdr) + 20 || ip[0] >> 4 != 4)
        return -1;
    return ip[18] == 0 && ip[19] <= hosts ? ip[19] - 1 : -1;
}

// Delivers the packets whose time has come. Returns the time of the next one; -1: none is left.
static int64_t deliver(struct packet **first, size_t *queued)
{
    while (*first && (*first)->arrives <= now_ns()) {
        struct packet *packet = *first;
        int to = host_of(packet);
        // A full receiver loses packets, as a switch does.
        if (to >= 0 && write(tun[to], packet->data, packet->bytes) < 0 && errno != EAGAIN &&
            errno != EIO && errno != EINVAL)
            die("write a packet");
        *queued -= packet->bytes;
        *first = packet->next;
        free(packet);
    }
    return *first ? (*first)->arrives : -1;
}

static struct packet *take(int fd)
{
    static _Thread_local char data[PACKET];
    ssize_t n = read(fd, data, sizeof data);
    if (n <= 0)
        return NULL;
    struct packet *packet = malloc(sizeof *packet + (size_t)n);
    if (!packet)
        die("memory");
    *packet = (struct packet){.bytes = (size_t)n};
    memcpy(packet->data, data, (size_t)n);
    return packet;
}

// Moves the packets that one host sends. With real-time priority, because programs that poll on all
// cores would delay packets by milliseconds. A link needs little of a core: it sleeps between
// packets.
static void *carry(void *data)
{
    int fd = tun[(intptr_t)data];
    struct sched_param priority = {.sched_priority = 10};
    (void)pthread_setschedparam(pthread_self(), SCHED_FIFO, &priority);
    struct packet *first = NULL, **last = &first;
    size_t queued = 0;
    double idle_at = 0; // when the interface has sent everything so far
    prctl(PR_SET_TIMERSLACK, 1UL);
    for (;;) {
        int64_t next = deliver(&first, &queued);
        if (!first)
            last = &first;
        struct packet *packet = queued < QUEUE ? take(fd) : NULL;
        if (packet) {
            double now = (double)now_ns();
            idle_at = (idle_at > now ? idle_at : now) + ns_per_byte * wire_bytes(packet->bytes);
            packet->arrives = (int64_t)idle_at + delay_ns;
            queued += packet->bytes;
            *last = packet;
            last = &packet->next;
            continue;
        }
        int64_t wait = next < 0 ? 1000000000 : next - now_ns();
        wait = wait > 0 ? wait : 0;
        struct timespec t = {wait / 1000000000, wait % 1000000000};
        struct pollfd poll_fd = {.fd = fd, .events = queued < QUEUE ? POLLIN : 0};
        ppoll(&poll_fd, 1, &t, NULL);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    char byte;
    hosts = argc == 4 ? (int)strtol(argv[1], NULL, 10) : 0;
    if (hosts < 1 || hosts > MAX_HOSTS) {
        fprintf(stderr, "usage: link HOSTS DELAY_US MBIT\n");
        return 2;
    }
    delay_ns = (int64_t)(strtod(argv[2], NULL) * 1e3);
    double mbit = strtod(argv[3], NULL);
    ns_per_byte = mbit > 0 ? 8e3 / mbit : 0;
    for (int k = 0; k < hosts; k++)
        printf("10.93.0.%d %d\n", k + 1, (int)start_host(k));
    for (intptr_t k = 0; k < hosts; k++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, carry, (void *)k) != 0)
            die("start a thread");
    }
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
